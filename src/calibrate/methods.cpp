#include "calibrate/methods.h"

#include <fmt/format.h>

#include "base/error.h"

namespace detent::calibration {
namespace {

void need_histogram(const std::string& tensor, const Summary& summary) {
  if (!summary.histogram.empty()) return;
  throw bad_input(fmt::format("the statistics of tensor '{}' hold no histogram", tensor),
                  "calibrate without --no-histogram, or use --method minmax");
}

Range best_mse_range(const std::string& tensor, const Summary& summary, const MethodConfig& method,
                     const QuantConfig& format, const Quantizer& quantizer, const Response* response) {
  if (!format.power_of_two_scale) return mse_range(summary, quantizer, response);
  if (!method.most_common) return mse_power_of_two_range(summary, quantizer);
  const bool wide = format.activation_type == QuantType::int16 || format.activation_type == QuantType::uint16;
  const Votes& votes = wide ? summary.votes_16_bit : summary.votes_8_bit;
  if (votes.empty() && !summary.all_zero()) {
    throw bad_input(
        fmt::format("the statistics of tensor '{}' do not say which scale is best for most samples", tensor),
        "calibrate with --most-common");
  }
  return most_common_power_of_two_range(votes, wide ? 16 : 8);
}

}  // namespace

std::string_view method_name(CalibrationMethod method) noexcept {
  switch (method) {
    case CalibrationMethod::minmax: return "minmax";
    case CalibrationMethod::percentile: return "percentile";
    case CalibrationMethod::layerwise_percentile: return "layerwise-percentile";
    case CalibrationMethod::mse: return "mse";
    case CalibrationMethod::entropy: return "entropy";
  }
  return "";
}

Range find_range(const std::string& tensor, const Summary& summary, const MethodConfig& method,
                 const QuantConfig& format, const Quantizer& quantizer, const Response* response) {
  if (method.method == CalibrationMethod::minmax) return minmax_range(summary, method.average);
  need_histogram(tensor, summary);
  switch (method.method) {
    case CalibrationMethod::percentile: return percentile_range(summary, method.percentile, method.two_sided);
    case CalibrationMethod::layerwise_percentile:
      return layerwise_percentile_range(summary, method.candidates, method.two_sided, method.metric, quantizer);
    case CalibrationMethod::mse: return best_mse_range(tensor, summary, method, format, quantizer, response);
    case CalibrationMethod::entropy: return entropy_range(summary, method.entropy_bins, method.entropy_levels);
    case CalibrationMethod::minmax: break;
  }
  throw internal_error("a calibration method without a rule");
}

}  // namespace detent::calibration
