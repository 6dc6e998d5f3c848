#include "calibration/methods.h"

namespace detent::calibration {

Range layerwise_percentile_range(const Summary& summary, std::span<const double> candidates, bool two_sided,
                                 ErrorMetric metric, const Quantizer& quantizer) {
  const Density density = density_of(summary);
  Range best;
  double least = -1;
  for (const double percentile : candidates) {
    const Range range = percentile_range(summary, percentile, two_sided);
    const double error = mean_error(density, quantizer(range), metric == ErrorMetric::mae ? Power::one : Power::two);
    if (least >= 0 && error >= least) continue;
    least = error;
    best = range;
  }
  return best;
}

namespace {

Range range_by(const MethodInput& input) {
  const MethodConfig& config = input.config;
  return layerwise_percentile_range(input.summary, config.candidates, config.two_sided, config.metric, input.quantizer);
}

}  // namespace

namespace methods {

extern const Method layerwise_percentile{.id = CalibrationMethod::layerwise_percentile, .range = range_by};

}  // namespace methods

}  // namespace detent::calibration
