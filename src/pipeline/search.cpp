// search(): what candidates cost, the front of their choices, and the models that are measured on it.
#include "detent/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/deadline.h"
#include "base/error.h"
#include "base/file.h"
#include "config/node_formats.h"
#include "config/validate.h"
#include "data/replay.h"
#include "detent/quantize.h"
#include "pipeline/search_candidates.h"
#include "pipeline/search_choice.h"
#include "pipeline/search_files.h"
#include "pipeline/search_points.h"
#include "run/deadline.h"
#include "run/outputs.h"
#include "run/run_profiler.h"
#include "searching/front.h"
#include "shim/ranks.h"

namespace detent {
namespace {

using pipeline::Candidates;
using pipeline::MadePoint;
using pipeline::SearchPoints;

// Formats of models that compete as a whole, and of single products.
constexpr const char* kSingles[] = {"int8", "int8-dynamic", "a16w8", "q8", "q4", "q2"};
constexpr int kRounds = 2;

QuantizeOptions base_of(const SearchOptions& options) {
  QuantizeOptions base;
  base.model = options.model;
  base.calibration_data = options.calibration_data;
  base.samples = options.samples;
  base.kernel_table = options.kernel_table;
  base.max_samples = options.max_samples;
  base.batch_size = options.batch_size;
  base.threads = options.threads;
  base.runtime = options.runtime;
  base.resources = options.resources;
  base.resources.time_limit.reset();
  base.resources.resume = false;
  base.bench = false;
  base.stop = options.stop;
  return base;
}

QuantizeOptions all_on_integers(QuantizeOptions base) {
  base.config.formats_given = true;
  base.optimize_for = OptimizeFor::size;
  return base;
}

class Search {
 public:
  Search(const SearchOptions& options, const std::function<bool()>& out_of_time)
      : options_(options), out_of_time_(out_of_time), profiler_(nullptr, {}), base_(base_of(options)) {
    const auto original = onnx::read_model(options.model);
    work_.emplace(base_.resources, run::run_identity({.model = original,
                                                      .output = options.output,
                                                      .calibration_data = options.calibration_data,
                                                      .options = nlohmann::json::object()}));
    base_.resources.work_dir = work_->scratch();
    runtime_.emplace(options.runtime, options.resources.sample_time_limit);
    for (const auto& name : options.formats) formats_.push_back(config::node_format(name, "--formats"));
    if (formats_.empty()) formats_.assign(std::begin(config::kNodeFormats), std::end(config::kNodeFormats));
    if (std::find(formats_.begin(), formats_.end(), config::NodeFormat::fp32) == formats_.end())
      formats_.insert(formats_.begin(), config::NodeFormat::fp32);
  }

  SearchResult run() {
    const auto trials = all_on_integers(base_);
    candidates_ = pipeline::find_candidates({trials, formats_, *runtime_, *work_, profiler_.profiler()});
    front_ = searching::front(candidates_.problem, candidates_.whole);
    points_.emplace(options_, base_, *runtime_, work_->scratch() / "points", profiler_.profiler());
    try {
      make_singles();
      for (int round = 0; round < kRounds; ++round) make_mixed(round);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::interrupted || !out_of_time_() || !points_->keep_timed()) throw;
      result_.out_of_time = true;
    }
    conclude();
    return std::move(result_);
  }

 private:
  void make_singles() {
    for (const auto* name : kSingles) {
      const auto format = config::node_format(name, "--formats");
      if (std::find(formats_.begin(), formats_.end(), format) == formats_.end()) continue;
      SearchPoint point;
      point.name = name;
      point.single = true;
      points_->make(std::move(point), points_->of_format(name));
      if (points_->float_seconds() == 0) points_->time();  // so that there is one when time is up
    }
    points_->time();
  }

  // Where the front lies beside what was measured: the points of it that are farthest from all of that, the limits of
  // the user in mind.
  void make_mixed(int round) {
    const auto expected = corrected();
    auto taken = measured();
    const bool any_near =
        std::any_of(expected.begin(), expected.end(), [&](const auto& c) { return is_near_limits(c); });
    const auto wanted = options_.points * static_cast<std::size_t>(round + 1) / kRounds - mixed_;
    for (const auto p : searching::spread(expected, taken, whole(), expected.size())) {
      if (mixed_ >= options_.points || made_mixed_in_ >= wanted) break;
      const auto& choice = front_[p].choice;
      auto formats = candidates_.node_formats(choice);
      if (formats.empty() || (any_near && !is_near_limits(expected[p])) || !known_.insert(formats).second) continue;
      SearchPoint point;
      point.name = fmt::format("mixed-{}", mixed_ + 1);
      point.node_formats = formats;
      point.expected_error = front_[p].costs.error;
      point.expected_seconds = front_[p].costs.seconds;
      if (!points_->make(std::move(point), points_->of_nodes(formats))) continue;
      ++mixed_;
      ++made_mixed_in_;
    }
    made_mixed_in_ = 0;
    points_->time();
  }

  searching::Costs whole() const {
    return {1, points_->float_seconds(), static_cast<double>(pipeline::float_point(options_).bytes)};
  }

  std::vector<searching::Costs> measured() const {
    std::vector<searching::Costs> costs{{0, points_->float_seconds(), whole().bytes}};
    for (const auto& point : points_->made())
      costs.push_back({point.told.error, point.told.seconds, static_cast<double>(point.told.bytes)});
    return costs;
  }

  // What is expected of the points of the front, by the proportion of what was measured to what was expected so far.
  std::vector<searching::Costs> corrected() const {
    std::vector<double> errors;
    for (const auto& point : points_->made()) {
      if (point.told.expected_error > 0) errors.push_back(point.told.error / point.told.expected_error);
    }
    std::sort(errors.begin(), errors.end());
    const double factor = errors.empty() ? 1 : errors[errors.size() / 2];
    const auto all = whole();
    double stays = all.bytes;
    for (const auto& forms : candidates_.problem.layers) stays -= forms.front().bytes;
    const double rate = candidates_.whole.seconds > 0 ? all.seconds / candidates_.whole.seconds : 0;
    std::vector<searching::Costs> expected;
    for (const auto& point : front_)
      expected.push_back({factor * point.costs.error, rate * point.costs.seconds, stays + point.costs.bytes});
    return expected;
  }

  bool is_near_limits(const searching::Costs& costs) const {
    constexpr double kMargin = 1.3;
    if (options_.max_latency && costs.seconds > kMargin * *options_.max_latency) return false;
    return !options_.max_size || costs.bytes <= kMargin * static_cast<double>(*options_.max_size);
  }

  void conclude() {
    auto whole_model = pipeline::float_point(options_);
    whole_model.seconds = points_->float_seconds();
    result_.points.push_back(std::move(whole_model));
    for (const auto& made : points_->made()) result_.points.push_back(made.told);
    pipeline::mark_front(result_.points);
    for (auto& point : result_.points) point.command = pipeline::command_of(options_, point);
    pipeline::choose_points(options_, result_.points);
    result_.candidates = candidates_.count();
    result_.samples = candidates_.samples;
    result_.inferences = candidates_.inferences + points_->inferences();
    result_.notes = candidates_.notes;
    result_.notes.insert(result_.notes.end(), points_->notes().begin(), points_->notes().end());
    pipeline::write_search(options_, points_->made(), result_);
    work_->finish();
    profiler_.finish();
    result_.stages = profiler_.stage_reports();
    result_.peak_memory = profiler_.profiler().peak_memory();
  }

  const SearchOptions& options_;
  const std::function<bool()>& out_of_time_;
  run::RunProfiler profiler_;
  QuantizeOptions base_;
  std::optional<run::RunDirectory> work_;
  std::optional<exec::Runtime> runtime_;
  std::vector<config::NodeFormat> formats_;
  Candidates candidates_;
  std::vector<searching::FrontPoint> front_;
  std::optional<SearchPoints> points_;
  std::set<std::vector<std::string>> known_;
  std::size_t mixed_ = 0;          // made
  std::size_t made_mixed_in_ = 0;  // of them, in this round
  SearchResult result_;
};

SearchResult search_in_time(const SearchOptions& options) {
  const auto never = [] { return false; };
  if (!options.resources.time_limit) return Search(options, never).run();
  const double seconds = *options.resources.time_limit;
  const Deadline deadline(seconds, options.stop, run::time_is_over(seconds, "give more"));
  SearchOptions limited = options;
  limited.stop = deadline.token();
  try {
    return Search(limited, [&] { return deadline.passed(); }).run();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !deadline.passed()) throw;
    throw deadline.error();
  }
}

}  // namespace

// Samples that pass once are kept, since each model reads them.
SearchResult search(const SearchOptions& options) {
  config::validate(options);
  if (shim::Ranks::join().size() > 1)
    throw usage_error("search runs in one process, but MPI started several", "leave out mpirun");
  pipeline::check_search_output(options);
  if (options.samples == nullptr || options.samples->can_rewind()) return search_in_time(options);
  const TempDir folder(options.resources.work_dir.value_or(""));
  data::ReplayStream kept(*options.samples, folder.path(), options.resources.disk_budget);
  auto again = options;
  again.samples = &kept;
  return search_in_time(again);
}

}  // namespace detent
