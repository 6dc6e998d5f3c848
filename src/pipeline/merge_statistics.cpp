// Several statistics files into one.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/paths.h"
#include "calibration/statistics_file.h"
#include "detent/calibrate.h"
#include "run/files/outputs.h"

namespace detent {

CalibrateResult merge_statistics(const std::vector<std::filesystem::path>& inputs,
                                 const std::filesystem::path& output) {
  run::check_place(output);
  if (inputs.empty()) throw usage_error("there is nothing to merge", "name statistics files after --merge");
  const auto is_output = [&](const auto& input) {
    std::error_code ignored;
    return std::filesystem::equivalent(input, output, ignored);
  };
  if (std::any_of(inputs.begin(), inputs.end(), is_output)) {
    throw usage_error(fmt::format("output '{}' would overwrite one of the files to merge", output.string()),
                      "choose another --output");
  }
  auto all = calibration::read_statistics(inputs.front());
  std::vector<Fingerprint> seen{all.data};
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    const auto more = calibration::read_statistics(inputs[i]);
    const std::string where = fmt::format("statistics '{}'", inputs[i].string());
    calibration::check_mergeable(all, more, where);
    if (std::find(seen.begin(), seen.end(), more.data) != seen.end())
      throw bad_input(where + " was made from the same samples as another of the files", "give each file once");
    seen.push_back(more.data);
    all.merge(more);
  }
  calibration::write_statistics(all, output);
  CalibrateResult result;
  result.samples = all.samples;
  result.tensors = all.tensors.size();
  result.output_bytes = paths::size_of(output);
  return result;
}

}  // namespace detent
