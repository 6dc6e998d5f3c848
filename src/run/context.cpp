#include "run/context.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/paths.h"
#include "config/validate.h"
#include "onnx/model.h"
#include "run/files/model_folder.h"
#include "run/files/run_directory.h"
#include "shim/shared_work.h"

namespace detent::run {

Error time_is_over(double seconds, const std::string& hint) {
  return resource_error(fmt::format("the time limit of {} s has passed", seconds), hint);
}

std::string hint_to_resume(const Resources& resources) {
  if (resources.resume) return "the same command continues the run";
  return "give more, or --resume from the beginning, which keeps what is done for the next run";
}

namespace fs = std::filesystem;

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

void check_same_model(shim::Ranks& ranks, const Options& options) {
  const auto mine = fingerprint_of(onnx::read_model(model_file(options.model)));
  if (shim::broadcast_value(&ranks, mine, options.stop) != mine)
    throw bad_input("the model differs from that of rank 0", "give all ranks the same files");
}

void add_file(Hasher& hasher, const fs::path& file) {
  constexpr std::size_t kPart = std::size_t{64} << 10;
  const auto content = MappedFile::open(file, "samples");
  const auto bytes = content->bytes();
  hasher.add(static_cast<std::uint64_t>(bytes.size()));
  hasher.add(bytes.first(std::min(kPart, bytes.size())));
  hasher.add(bytes.last(std::min(kPart, bytes.size())));
}

// Names and sizes of all files, and what they begin and end with.
Fingerprint samples_at(const fs::path& path) {
  Hasher hasher;
  if (!paths::is_folder(path)) {
    if (paths::is_file(path)) add_file(hasher, path);
    return hasher.result();
  }
  std::vector<fs::path> files;
  for (std::vector<fs::path> folders{path}; !folders.empty();) {
    const auto folder = std::move(folders.back());
    folders.pop_back();
    for (auto& entry : paths::entries_of(folder)) {
      std::error_code ignored;
      const bool is_folder = paths::is_folder(entry) && !fs::is_symlink(entry, ignored);
      if (is_folder || paths::is_file(entry)) (is_folder ? folders : files).push_back(std::move(entry));
    }
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    hasher.add(file.lexically_relative(path).string());
    add_file(hasher, file);
  }
  return hasher.result();
}

// Each rank reads some of them.
void check_same_samples(shim::Ranks& ranks, const Options& options) {
  Hasher hasher;
  hasher.add(static_cast<std::uint64_t>(options.max_samples));
  hasher.add(static_cast<std::uint64_t>(options.batch_size));
  for (const auto& value : options.input_values) hasher.add(value + "\n");
  if (const auto& data = options.calibration_data; data && !data->empty()) hasher.add(samples_at(*data).text());
  const auto mine = hasher.result();
  if (shim::broadcast_value(&ranks, mine, options.stop) != mine)
    throw bad_input("the samples, or their number, differ from those of rank 0",
                    "give all ranks the same files and the same line");
}

// Parts of the work would go into one result that fit nobody's options.
void check_same_options(shim::Ranks& ranks, const Options& options, config::Command command) {
  Hasher hasher;
  hasher.add(DETENT_VERSION);
  for (const auto what : {config::Affects::statistics, config::Affects::integers})
    hasher.add(json_text(config::identity(options, what, command)));
  const auto mine = hasher.result();
  if (shim::broadcast_value(&ranks, mine, options.stop) != mine)
    throw usage_error("the options, or the version of detent, differ from those of rank 0",
                      "start all ranks by the same line");
}

Options options_of(const shim::Ranks& ranks, Options options, config::Command command) {
  if (ranks.rank() == 0) return options;
  if (command == config::kQuantize) options.model = model_file(options.model);  // the folder of the result is rank 0's
  options.profile.reset();
  options.report.reset();
  options.trace.reset();
  options.prepared_output.reset();
  options.progress = {};
  options.layer_tuned = {};
  options.stage_expected = {};
  options.resources.resume = false;
  return options;
}

Error named(const Error& e, int rank) {
  return {e.kind(), fmt::format("rank {} on {}: {}", rank, host_name(), e.what()), e.hint()};
}

void check_same(shim::Ranks& ranks, const Options& options, config::Command command) {
  check_same_options(ranks, options, command);
  check_same_model(ranks, options);
  check_same_samples(ranks, options);
}

template <class Result>
Result among(shim::Ranks& ranks, const Options& options, config::Command command,
             const std::function<Result(const Options&)>& call) {
  Result result;
  const int rank = ranks.rank(), size = ranks.size();
  try {
    check_same(ranks, options, command);
    result = call(options_of(ranks, options, command));
  } catch (const ShareDone&) {
  } catch (const Error& e) {
    throw named(e, rank);
  }
  result.rank = rank;
  result.ranks = size;
  return result;
}

}  // namespace

void leave_rest_to_first(const Resources& resources) {
  if (shim::rank_of(resources.ranks) != 0) throw ShareDone();
  if (resources.ranks != nullptr) resources.ranks->go_on_alone();
}

double measured_by_first(const Resources& resources, const std::stop_token& stop,
                         const std::function<double()>& measure) {
  return shim::broadcast_value(resources.ranks, shim::rank_of(resources.ranks) == 0 ? measure() : 0, stop);
}

void check_same_among(shim::Ranks& ranks, const Options& options, config::Command command) {
  if (ranks.size() == 1) return;
  try {
    check_same(ranks, options, command);
  } catch (const Error& e) {
    throw named(e, ranks.rank());
  }
}

QuantizeResult run_among(shim::Ranks& ranks, const QuantizeOptions& options,
                         const std::function<QuantizeResult(const QuantizeOptions&)>& call) {
  auto result = among(ranks, options, config::kQuantize, call);
  result.received_bytes = ranks.received_bytes();
  return result;
}

SearchResult run_among(shim::Ranks& ranks, const SearchOptions& options,
                       const std::function<SearchResult(const SearchOptions&)>& call) {
  return among(ranks, options, config::kSearch, call);
}

}  // namespace detent::run
