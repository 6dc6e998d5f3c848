#include "pipeline/quantize_within_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "config/validate.h"
#include "detent/search.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

SearchOptions search_of(const QuantizeOptions& options, const std::filesystem::path& folder) {
  SearchOptions search;
  search.model = options.model;
  search.output = folder / "found";
  search.calibration_data = options.calibration_data;
  search.samples = options.samples;
  search.max_latency = options.max_latency;
  search.max_size = options.weights_only.max_size;
  search.may_be_float = false;
  search.accuracy = options.accuracy;
  search.kernel_table = options.kernel_table;
  search.max_samples = options.max_samples;
  search.batch_size = options.batch_size;
  search.input_values = options.input_values;
  search.threads = options.threads;
  search.runtime = options.runtime;
  search.resources = options.resources;
  search.resources.work_dir = folder;
  search.progress = options.progress;
  search.stop = options.stop;
  return search;
}

// The search has looked after what they ask for.
QuantizeOptions without_limits(QuantizeOptions options) {
  options.max_latency.reset();
  options.weights_only.max_size.reset();
  options.accuracy = {};
  return options;
}

std::string told_of(const SearchPoint& point, std::size_t models) {
  return fmt::format("of {}, {} meets the limits best: {:.4g} ms, {} and {:.1f} dB when it was measured beside them",
                     count_with_noun(models, "searched model"), point.name, 1e3 * point.seconds,
                     format_size(point.bytes), point.sqnr_db);
}

}  // namespace

QuantizeResult quantize_within_limits(const QuantizeOptions& options) {
  config::validate(options);
  run::check_apart(run::written_files(options), options.calibration_data);
  const run::PrivateDirectory folder(options.resources);
  const auto found = search(search_of(options, folder.path()));
  // Rank 0 alone has points.
  const auto chosen =
      std::find_if(found.points.begin(), found.points.end(), [](const auto& point) { return !point.chosen.empty(); });
  const bool knows = chosen != found.points.end();
  auto own = without_limits(options);
  own.node_formats = shim::broadcast_names(options.resources.ranks,
                                           knows ? chosen->node_formats : std::vector<std::string>(), options.stop);
  if (own.samples != nullptr) own.samples->rewind();
  auto result = quantize(own);
  if (knows) result.notes.insert(result.notes.begin(), told_of(*chosen, found.points.size()));
  result.peak_memory = std::max(result.peak_memory, found.peak_memory);
  return result;
}

}  // namespace detent::pipeline
