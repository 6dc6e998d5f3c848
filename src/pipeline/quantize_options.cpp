#include "pipeline/quantize_options.h"

#include "base/parallel.h"
#include "calibrate/methods.h"

namespace detent::pipeline {

quantization::RangeOptions range_options(const QuantizeOptions& options) {
  return {options.method, options.overrides, thread_count(options.threads)};
}

std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options,
                                             const calibration::Statistics& statistics) {
  std::vector<CalibrationMethod> methods = options.accuracy.other_methods;
  std::erase_if(methods, [&](CalibrationMethod method) {
    return method == options.method.method ||
           (calibration::method_of(method).needs_histogram && !statistics.has_histograms);
  });
  return methods;
}

}  // namespace detent::pipeline
