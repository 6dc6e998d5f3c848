#include "run/shared_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "config/identity.h"
#include "onnx/model.h"
#include "run/files/model_fingerprint.h"
#include "run/files/model_folder.h"
#include "shim/shared_work.h"

namespace detent::run {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unknown host";
}

template <class Options>
void check_same_model(shim::Ranks& ranks, const Options& options) {
  const auto mine = fingerprint_of(onnx::read_model(model_file(options.model)));
  if (shim::broadcast_value(&ranks, mine, options.stop) != mine)
    throw bad_input("the model is another one than that of rank 0", "give all ranks the same files");
}

// Parts of the work would go into one result that fit nobody's options.
template <class Options>
void check_same_options(shim::Ranks& ranks, const Options& options) {
  Hasher hasher;
  hasher.add(DETENT_VERSION);
  for (const auto what : {config::Affects::statistics, config::Affects::integers})
    hasher.add(json_text(config::identity(options, what)));
  const auto mine = hasher.result();
  if (shim::broadcast_value(&ranks, mine, options.stop) != mine)
    throw usage_error("the options, or detent, are others than those of rank 0", "start all ranks by the same line");
}

QuantizeOptions options_of(const shim::Ranks& ranks, QuantizeOptions options) {
  if (ranks.rank() == 0) return options;
  options.model = model_file(options.model);  // the folder of the result is rank 0's
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

SearchOptions options_of(const shim::Ranks& ranks, SearchOptions options) {
  if (ranks.rank() == 0) return options;
  options.progress = {};
  options.resources.resume = false;
  return options;
}

template <class Options, class Result>
Result among(shim::Ranks& ranks, const Options& options, const std::function<Result(const Options&)>& call) {
  Result result;
  const int rank = ranks.rank(), size = ranks.size();
  try {
    check_same_options(ranks, options);
    check_same_model(ranks, options);
    result = call(options_of(ranks, options));
  } catch (const ShareDone&) {
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("rank {} on {}: {}", rank, host_name(), e.what()), e.hint());
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

QuantizeResult run_among(shim::Ranks& ranks, const QuantizeOptions& options,
                         const std::function<QuantizeResult(const QuantizeOptions&)>& call) {
  auto result = among(ranks, options, call);
  result.received_bytes = ranks.received_bytes();
  return result;
}

SearchResult run_among(shim::Ranks& ranks, const SearchOptions& options,
                       const std::function<SearchResult(const SearchOptions&)>& call) {
  return among(ranks, options, call);
}

}  // namespace detent::run
