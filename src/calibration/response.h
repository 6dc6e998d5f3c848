// What the readers of a value make of it, where that is one function of each element. x * sigmoid(x) maps all that is
// below -8 to next to nothing, so an error there counts for nothing, and a range need not reach that far.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "calibration/density.h"

namespace detent::calibration {

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

}  // namespace detent::calibration
