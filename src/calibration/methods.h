// Calibration methods: from the summary of a tensor to the range that its integers shall cover. Pure functions, so any
// method can be tried on saved statistics.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "calibration/statistics.h"
#include "detent/config.h"

namespace detent::calibration {

// The distribution that a summary stands for: values spread evenly over each bin of its histogram.

struct Interval {
  double low = 0;
  double high = 0;
  double count = 0;
  double per_width = 0;  // count / (high - low); 0 for a point, whose ends are equal or as good as equal

  Interval(double from, double to, double values);
};

struct Density {
  std::vector<Interval> intervals;  // ascending, within [min, max]
  double min = 0;
  double max = 0;
  double total = 0;
};

/// Outer bins end at the exact extremes. Empty for a summary without a histogram.
Density density_of(const Summary& summary);

/// What integers of a quantized tensor stand for: multiples of `step` from `low` to `high`, 0 among them.
struct Grid {
  double step = 1;
  double low = 0;
  double high = 0;
};

enum class Power { one, two };
/// Mean over all values of |x - Q(x)| or of its square, Q rounding to the nearest grid point and clipping: integrated
/// over each interval, not taken at its centre.
double mean_error(const Density& density, const Grid& grid, Power power);

// What the readers of a value make of it, where that is one function of each element. x * sigmoid(x) maps all that is
// below -8 to next to nothing, so an error there counts for nothing, and a range need not reach that far.

/// A function of one number, tabulated: linear between the points and beyond them.
class Response {
 public:
  /// Where functions are tabulated: 0 and 64 points to each octave from 2^-24 to 2^24, of both signs. Ascending.
  static std::span<const float> points();

  /// `values` at points(). Throws internal for another number of them.
  explicit Response(std::vector<float> values);
  double operator()(double x) const;
  double slope(double x) const;
  bool is_finite() const;

 private:
  std::size_t segment(double x) const;

  std::vector<float> values_;
};

/// A density whose errors are judged behind a function f: the mean of (f(x) - f(Q(x)))^2. Within the grid f counts as
/// linear over an interval, so that is the error of x times the square of the slope.
class ResponseDensity {
 public:
  ResponseDensity(const Density& density, const Response& response);

  double mean_error(const Grid& grid) const;
  /// A cheap stand-in: a uniform error within the grid, and next to 0, where values less than half a step away round to
  /// it, their own size.
  double estimate(const Grid& grid) const;

 private:
  struct Moments {
    double n = 0, f = 0, ff = 0;  // of what f makes of the values
    double weight = 0;            // squared slopes,
    double near_zero = 0;         // and these times x^2
    Moments operator-(const Moments& other) const;
  };
  std::size_t upto(double x) const;
  double clipping_error(const Grid& grid) const;

  Response response_;
  std::vector<Interval> weighted_;  // counts times squared slopes
  std::vector<Moments> sums_;
};

/// The grid that a range leads to: knows the integer type, symmetry and form of the scale.
using Quantizer = std::function<Grid(const Range&)>;

/// Smallest and largest value, or with `average` the means over runs of each run's smallest and largest value.
Range minmax_range(const Summary& summary, bool average);

/// Range that keeps `percentile` percent of the values. Symmetric: that percentile of |x|, on both sides. Two-sided:
/// half of the rest is cut on each side. Either way no wider than the extremes. Percentiles are those of numpy (linear
/// between order statistics); a value is known to half a bin, 0.2 % down to 1/32 of the largest value of its sign.
Range percentile_range(const Summary& summary, double percentile, bool two_sided);

/// The candidate percentile whose range has the least mean error after quantizing and dequantizing; the first of
/// equals.
Range layerwise_percentile_range(const Summary& summary, std::span<const double> candidates, bool two_sided,
                                 ErrorMetric metric, const Quantizer& quantizer);

/// The range with the least mean squared error after quantizing and dequantizing; with a response, of what it makes of
/// the values.
Range mse_range(const Summary& summary, const Quantizer& quantizer, const Response* response = nullptr);

/// The same for a quantizer whose scales are powers of two: the range of the extremes, halved as often as is best.
Range mse_power_of_two_range(const Summary& summary, const Quantizer& quantizer);

/// Exponent of the power-of-two scale with which symmetric integers of so many bits have the least mean squared error.
int best_power_of_two(const Summary& summary, int bits);
/// The range that leads to the exponent that was best for most runs, the larger one of equals; without votes scale 1.
Range most_common_power_of_two_range(const Votes& votes, int bits);

/// Range [-t, t], no wider than the extremes, for the t that loses the least information (Migacz, "8-bit inference with
/// TensorRT", 2017). |x| is spread over `bins` equal bins up to its largest value; the first bin gets the count of the
/// second, because zero is exact with every scale. A candidate t ends after i bins, i from `bins` down to `levels` in
/// steps of `levels`/16 (at least 1): P is the histogram up to there with all that lies beyond added to its last bin, Q
/// the histogram up to there merged into `levels` groups (group j takes bins floor(j*i/levels) to
/// floor((j+1)*i/levels)), each group's count spread evenly over its non-empty bins of P. Chosen: the least KL(P || Q),
/// the widest of equals.
Range entropy_range(const Summary& summary, std::size_t bins, std::size_t levels);

/// What a method finds the range of one tensor from.
struct MethodInput {
  const std::string& tensor;  // its name, for messages
  const Summary& summary;
  const MethodConfig& config;
  const QuantConfig& format;
  const Quantizer& quantizer;
  const Response* response = nullptr;  // of the values' readers; heeded by mse with scales of any size
};

/// A calibration method: a constant of its own name in the namespace calibration::methods, defined by its file in
/// methods/.
struct Method {
  CalibrationMethod id;
  bool needs_histogram = true;
  Range (*range)(const MethodInput& input);
  /// Whether it needs the best power-of-two scale of each sample. Null: it does not.
  bool (*needs_votes)(const MethodConfig& config, const QuantConfig& format) = nullptr;
};

/// In the order of their files. The build lists these.
std::span<const Method* const> all_methods();
const Method& method_of(CalibrationMethod id);
/// As on the command line.
std::string_view method_name(CalibrationMethod id);

/// Whether any method needs the votes, whichever is chosen.
bool needs_votes(const MethodConfig& config, const QuantConfig& format);

/// The range of one tensor by the configured method. Throws bad_input when the summary lacks what the method needs.
Range find_range(const MethodInput& input);

}  // namespace detent::calibration
