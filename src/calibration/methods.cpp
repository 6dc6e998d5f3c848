#include "calibration/methods.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace detent::calibration {

const Method& method_of(CalibrationMethod id) {
  const auto all = all_methods();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Method* method) { return method->id == id; });
  if (found == all.end()) throw internal_error("a calibration method without a file");
  return **found;
}

std::string_view method_name(CalibrationMethod id) { return kCalibrationMethods[static_cast<std::size_t>(id)]; }

bool needs_votes(const MethodConfig& config, const QuantConfig& format) {
  const auto all = all_methods();
  return std::any_of(all.begin(), all.end(), [&](const Method* method) {
    return method->needs_votes != nullptr && method->needs_votes(config, format);
  });
}

Range find_range(const MethodInput& input) {
  const Method& method = method_of(input.config.method);
  if (method.needs_histogram && input.summary.histogram.empty()) {
    throw bad_input(fmt::format("the statistics of tensor '{}' hold no histogram", input.tensor),
                    "calibrate without --no-histogram, or use --method minmax");
  }
  return method.range(input);
}

}  // namespace detent::calibration
