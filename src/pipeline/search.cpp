// search(): what candidates cost, the front of their choices, and the models that are measured on it.
#include "detent/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "config/identity.h"
#include "config/node_formats.h"
#include "config/validate.h"
#include "data/replay.h"
#include "onnx/model.h"
#include "pipeline/recipe.h"
#include "pipeline/search/search_candidates.h"
#include "pipeline/search/search_choice.h"
#include "pipeline/search/search_files.h"
#include "pipeline/search/search_machines.h"
#include "pipeline/search/search_points.h"
#include "pipeline/search/search_singles.h"
#include "pipeline/stages.h"
#include "pipeline/stages/deploy.h"
#include "remedies/remedies.h"
#include "run/comparison/outcome.h"
#include "run/deadline.h"
#include "run/files/run_directory.h"
#include "run/records/run_profiler.h"
#include "run/shared_run.h"
#include "searching/front.h"
#include "shim/shared_work.h"

namespace detent {
namespace pipeline {
namespace {

using config::NodeFormat;

// The run whose stages give what all mixtures are made of.
QuantizeOptions mixing(const SearchOptions& options, const std::filesystem::path& folder) {
  auto mixed = base_of(options);
  mixed.resources.resume = options.resources.resume;
  mixed.node_formats = {"^.*=int8"};
  mixed.resources.work_dir = folder;
  mixed.output = folder / "mixed.onnx";
  mixed.progress = options.progress;
  return mixed;
}

// Where an interrupted search is found again.
nlohmann::json identity_of(const SearchOptions& options) {
  const auto model = onnx::read_model(options.model);
  return run::run_identity({.model = model,
                            .output = options.output,
                            .calibration_data = options.calibration_data,
                            .options = config::run_identity(mixing(options, {}))});
}

// What one format for all nodes that can have it must change, as a share of the float model, to be worth a model.
constexpr double kWorthAModel = 0.02;
constexpr int kRounds = 2;
constexpr const char* kMoreTime = "give more";
const double kFar = std::pow(10, -run::kCloseDb / 10);             // an error that is no longer close
const double kUseless = std::pow(10, -remedies::kUselessDb / 10);  // an error that no mixture is tried for

// Stages that come again for each model are told as one.
std::vector<StageReport> by_name(std::vector<StageReport> stages) {
  std::vector<StageReport> together;
  for (auto& stage : stages) {
    const auto same = [&](const StageReport& other) { return other.name == stage.name; };
    const auto found = std::find_if(together.begin(), together.end(), same);
    if (found == together.end()) {
      together.push_back(std::move(stage));
      continue;
    }
    found->seconds += stage.seconds;
    found->peak_memory = std::max(found->peak_memory, stage.peak_memory);
  }
  return together;
}

class Search {
 public:
  /// `waiting`: the user's stop. That of the options comes when time is up, too.
  Search(const SearchOptions& options, std::stop_token waiting, const std::function<bool()>& out_of_time)
      : options_(options),
        waiting_(std::move(waiting)),
        out_of_time_(out_of_time),
        work_(options.resources, identity_of(options)),
        profiler_(nullptr, {}),
        recipe_(recipe_of(mixing(options, work_.path()))),
        run_(recipe_, shared_, profiler_) {
    for (const auto& name : options.formats) formats_.push_back(config::node_format(name, "--formats"));
    if (formats_.empty()) formats_.assign(std::begin(config::kNodeFormats), std::end(config::kNodeFormats));
    if (std::find(formats_.begin(), formats_.end(), NodeFormat::fp32) == formats_.end())
      formats_.insert(formats_.begin(), NodeFormat::fp32);
    if (options.machines) machines_ = read_machines(*options.machines);
  }

  SearchResult run() {
    const bool helps = shim::rank_of(ranks()) != 0;
    if (!helps) check_memory_to_time(options_, 0);
    run_until(run_, leave_rest_to_first);
    if (!helps) {
      check_memory_to_time(options_, run_.runtime->peak_activation_bytes());
      find_front();
    }
    points_.emplace(options_, run_, work_.path() / "points", waiting_);
    if (helps) {
      points_->help();
      return {};
    }
    measure_points();
    points_->dismiss_helpers();
    conclude();
    return std::move(result_);
  }

 private:
  shim::Ranks* ranks() const { return options_.resources.ranks; }

  void find_front() {
    const shim::Apart apart(ranks());
    std::vector<std::filesystem::path> tables;
    for (const auto& machine : machines_) tables.push_back(machine.kernel_table);
    candidates_ = find_candidates(run_, formats_, tables);
    front_ = searching::pareto_front(candidates_.problem, candidates_.whole);
  }

  void measure_points() {
    try {
      measure_single_formats();
      for (int round = 1; round <= kRounds; ++round)
        make_mixed(front_, here(), options_.points * static_cast<std::size_t>(round) / kRounds);
      for (std::size_t m = 0; m < machines_.size(); ++m) {
        const auto there = machine(m);
        make_mixed(searching::pareto_front(candidates_.elsewhere[m], there.timed), there,
                   mixed_ + options_.points / kRounds);
      }
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::interrupted || !(out_of_time_() || points_->cut_off())) throw;
      if (!points_->keep_timed()) throw run::time_is_over(*options_.resources.time_limit, kMoreTime);
      result_.out_of_time = true;
    }
  }

  void measure_single_formats() {
    auto points = points_of_single_formats();
    const auto make = [&](auto begin, auto end) {
      for (auto& attempt : points_->attempt({begin, end})) points_->keep(std::move(attempt));
      points_->time();
    };
    const auto first = points.begin() + (points.empty() ? 0 : 1);
    make(points.begin(), first);  // so that there is one when time is up
    make(first, points.end());
  }

  std::vector<SearchPoint> points_of_single_formats() {
    const shim::Apart apart(ranks());
    std::vector<SearchPoint> points;
    for (auto& single : single_formats(run_, candidates_, formats_)) {
      if (!is_worth_a_model(single)) continue;
      auto point = expected_point(single.name, single.choice);
      point.single = true;
      if (!known_.insert(point.node_formats).second) continue;
      if (single.runs_alone) point.node_formats.clear();
      if (single.format == NodeFormat::a16w8)
        choices_.erase(point.name);  // which nodes it leaves in float is not known
      points.push_back(std::move(point));
    }
    return points;
  }

  SearchPoint expected_point(const std::string& name, const searching::Choice& choice) {
    SearchPoint point;
    point.name = name;
    point.node_formats = candidates_.node_formats(choice);
    const auto costs = searching::costs_of(candidates_.problem, choice);
    point.expected_error = costs.error;
    point.expected_seconds = costs.seconds;
    choices_[name] = choice;
    return point;
  }

  bool is_worth_a_model(const SingleFormat& single) {
    const auto in_float = candidates_.all_in(NodeFormat::fp32);
    if (in_float == single.choice) return false;
    if (single.format == NodeFormat::int8) return true;  // the float model is timed beside it
    const auto before = searching::costs_of(candidates_.problem, in_float);
    const auto after = searching::costs_of(candidates_.problem, single.choice);
    if (std::abs(before.bytes - after.bytes) > kWorthAModel * candidates_.whole.bytes) return true;
    if (std::abs(before.seconds - after.seconds) > kWorthAModel * candidates_.whole.seconds) return true;
    result_.notes.push_back(fmt::format("{} alone is not tried: it would change size and latency by less than {:.0f} %",
                                        single.name, 100 * kWorthAModel));
    return false;
  }

  // Where models are to run: times of the choices there.
  struct Place {
    const searching::Problem* problem;
    searching::Costs timed;  // the float model, by the times of its operators
    searching::Costs whole;  // as it is expected, or was measured, to be
    std::optional<double> max_latency;
  };

  Place here() const {
    return {&candidates_.problem,
            candidates_.whole,
            {1, points_->float_seconds(), candidates_.whole.bytes},
            machines_.empty() ? options_.max_latency : std::nullopt};
  }

  Place machine(std::size_t m) const {
    auto place = here();
    place.problem = &candidates_.elsewhere[m];
    place.timed.seconds = searching::costs_of(*place.problem, candidates_.all_in(NodeFormat::fp32)).seconds;
    if (candidates_.whole.seconds > 0) place.whole.seconds *= place.timed.seconds / candidates_.whole.seconds;
    place.max_latency = options_.max_latency;
    return place;
  }

  // Of a measured model: as long as here, times what its operators take there beside here. Unset: its choice depends on
  // the times of this machine.
  std::optional<double> seconds_at(const Place& place, const SearchPoint& point) const {
    const auto choice = choices_.find(point.name);
    if (choice == choices_.end()) return std::nullopt;
    const double timed = searching::costs_of(candidates_.problem, choice->second).seconds;
    const double there = searching::costs_of(*place.problem, choice->second).seconds;
    return timed > 0 ? point.seconds * there / timed : point.seconds;
  }

  // Where the front lies beside what was measured: the points of it that are farthest from all of that, the limits of
  // the user in mind.
  void make_mixed(const std::vector<searching::FrontPoint>& front, const Place& place, std::size_t wanted) {
    const auto expected = corrected(front, place);
    const bool any_near =
        std::any_of(expected.begin(), expected.end(), [&](const auto& c) { return is_near_limits(place, c); });
    auto order = searching::most_spread_points(expected, measured(place), place.whole, expected.size());
    if (place.problem != &candidates_.problem) fastest_first(expected, order);
    std::vector<searching::Choice> choices;
    auto listed = known_;
    for (const auto p : order) {
      auto formats = candidates_.node_formats(front[p].choice);
      if (formats.empty() || expected[p].error > kUseless || (any_near && !is_near_limits(place, expected[p])))
        continue;
      if (listed.insert(std::move(formats)).second) choices.push_back(front[p].choice);
    }
    for (auto next = choices.begin(); mixed_ < wanted && next != choices.end();) {
      const auto left = static_cast<std::size_t>(choices.end() - next);
      const auto end = next + static_cast<std::ptrdiff_t>(std::min(wanted - mixed_, left));
      make_mixed({next, end});
      next = end;
    }
    points_->time();
  }

  // Models that the operators have no form for leave their numbers to the next ones.
  void make_mixed(const std::vector<searching::Choice>& choices) {
    std::vector<SearchPoint> points;
    for (const auto& choice : choices) {
      points.push_back(expected_point("mixed", choice));
      known_.insert(points.back().node_formats);
    }
    auto attempts = points_->attempt(std::move(points));
    for (std::size_t a = 0; a < attempts.size(); ++a) {
      auto name = attempts[a].point.name = fmt::format("mixed-{}", mixed_ + 1);
      if (!points_->keep(std::move(attempts[a]))) continue;
      choices_[std::move(name)] = choices[a];
      ++mixed_;
    }
  }

  // Of those that are close to the float model: what serves most requests.
  static void fastest_first(const std::vector<searching::Costs>& expected, std::vector<std::size_t>& order) {
    const auto found = std::min_element(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto seconds = [&](std::size_t p) {
        return expected[p].error > kFar ? std::numeric_limits<double>::infinity() : expected[p].seconds;
      };
      return seconds(a) < seconds(b);
    });
    if (found != order.end()) std::rotate(order.begin(), found, found + 1);
  }

  std::vector<searching::Costs> measured(const Place& place) const {
    std::vector<searching::Costs> costs{{0, place.whole.seconds, place.whole.bytes}};
    for (const auto& point : points_->made()) {
      if (const auto seconds = seconds_at(place, point.told); seconds || place.problem == &candidates_.problem)
        costs.push_back(
            {point.told.error, seconds.value_or(point.told.seconds), static_cast<double>(point.told.bytes)});
    }
    return costs;
  }

  // What is expected of the points of the front, by the proportion of what was measured to what was expected so far.
  std::vector<searching::Costs> corrected(const std::vector<searching::FrontPoint>& front, const Place& place) const {
    std::vector<double> errors;
    for (const auto& point : points_->made()) {
      if (point.told.expected_error > 0) errors.push_back(point.told.error / point.told.expected_error);
    }
    std::sort(errors.begin(), errors.end());
    const double factor = errors.empty() ? 1 : errors[errors.size() / 2];
    double stays = place.whole.bytes;
    for (const auto& forms : candidates_.problem.layers) stays -= forms.front().bytes;
    const double rate = place.timed.seconds > 0 ? place.whole.seconds / place.timed.seconds : 0;
    std::vector<searching::Costs> expected;
    for (const auto& point : front)
      expected.push_back({factor * point.costs.error, rate * point.costs.seconds, stays + point.costs.bytes});
    return expected;
  }

  bool is_near_limits(const Place& place, const searching::Costs& costs) const {
    constexpr double kMargin = 1.3;
    if (place.max_latency && costs.seconds > kMargin * *place.max_latency) return false;
    return !options_.max_size || costs.bytes <= kMargin * static_cast<double>(*options_.max_size);
  }

  // Which of the machines serves which model, and how many of each.
  void choose_machines() {
    std::vector<std::vector<std::optional<double>>> seconds;
    std::vector<std::vector<Offered>> offered(machines_.size());
    std::map<std::size_t, std::uint64_t> memory;  // by point
    for (std::size_t m = 0; m < machines_.size(); ++m) {
      const auto there = machine(m);
      auto& row = seconds.emplace_back();
      for (std::size_t p = 0; p < result_.points.size(); ++p) {
        row.push_back(seconds_at(there, result_.points[p]));
        if (!row[p] || !serves(options_, result_.points[p], *row[p])) continue;
        offered[m].push_back({p, *row[p], 0});
        memory[p] = 0;
      }
    }
    std::vector<std::filesystem::path> models;
    for (const auto& [p, bytes] : memory) models.push_back(p == 0 ? options_.model : points_->made()[p - 1].file);
    if (!models.empty()) {
      const auto measured = peak_memories(options_, models, waiting_, result_.notes);
      for (std::size_t at = 0; auto& [p, bytes] : memory) bytes = measured[at++];
    }
    for (auto& row : offered) {
      for (auto& each : row) each.peak_memory = memory[each.point];
    }
    result_.machines = serve(machines_, offered, result_.points, *options_.requests);
    if (result_.machines.empty()) throw no_machine_error(options_, result_.points, machines_, seconds);
    for (const auto& each : result_.machines) {
      if (each.needed == 0) continue;
      const auto named = [&](const SearchPoint& point) { return point.name == each.model; };
      std::find_if(result_.points.begin(), result_.points.end(), named)->chosen.push_back("on " + each.machine);
    }
  }

  void add_notes(const std::vector<std::string>& notes) {
    result_.notes.insert(result_.notes.end(), notes.begin(), notes.end());
  }

  void conclude() {
    auto whole_model = float_point(options_);
    choices_[whole_model.name] = candidates_.all_in(NodeFormat::fp32);
    whole_model.seconds = points_->float_seconds();
    result_.points.push_back(std::move(whole_model));
    for (const auto& made : points_->made()) result_.points.push_back(made.told);
    mark_front(result_.points);
    for (auto& point : result_.points) point.command = command_of(options_, point);
    if (machines_.empty()) {
      choose_points(options_, result_.points);
    } else {
      choose_machines();
    }
    result_.candidates = candidates_.count();
    result_.samples = candidates_.samples;
    result_.inferences = candidates_.inferences + points_->inferences();
    add_notes(work_.notes());
    add_notes(candidates_.notes);
    add_notes(points_->notes());
    auto told = finish(run_);
    result_.stages = by_name(std::move(told.stages));
    result_.peak_memory = told.peak_memory;
    write_search(options_, points_->made(), result_);
    work_.finish();
  }

  const SearchOptions& options_;
  std::stop_token waiting_;
  const std::function<bool()>& out_of_time_;
  run::RunDirectory work_;
  run::RunProfiler profiler_;
  const Recipe recipe_;
  const SharedByRuns shared_;
  Run run_;
  std::vector<NodeFormat> formats_;
  Candidates candidates_;
  std::vector<searching::FrontPoint> front_;
  std::optional<SearchPoints> points_;
  std::set<std::vector<std::string>> known_;
  std::map<std::string, searching::Choice> choices_;  // by name of the point
  std::vector<Machine> machines_;
  std::size_t mixed_ = 0;  // made
  SearchResult result_;
};

SearchResult search_in_time(const SearchOptions& options) {
  const auto never = [] { return false; };
  if (!options.resources.time_limit) return Search(options, options.stop, never).run();
  const double seconds = *options.resources.time_limit;
  const Deadline deadline(seconds, options.stop, run::time_is_over(seconds, kMoreTime));
  SearchOptions limited = options;
  limited.stop = deadline.token();
  try {
    return Search(limited, options.stop, [&] { return deadline.passed(); }).run();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !deadline.passed()) throw;
    throw deadline.error();
  }
}

// Samples that pass once are kept, since each model reads them.
SearchResult search_as_given(const SearchOptions& options) {
  if (shim::rank_of(options.resources.ranks) == 0) check_search_output(options);
  auto own = options;
  if (own.machines) own.threads = 1;  // as the times of operators are
  if (own.samples == nullptr || own.samples->can_rewind()) return search_in_time(own);
  const run::PrivateDirectory folder(own.resources);
  data::ReplayStream kept(*own.samples, folder.path(), own.resources.disk_budget);
  own.samples = &kept;
  return search_in_time(own);
}

}  // namespace
}  // namespace pipeline

SearchResult search(const SearchOptions& options) {
  config::validate(options);
  if (options.resources.ranks != nullptr) return pipeline::search_as_given(options);  // of a run that has joined them
  auto ranks = shim::Ranks::join();
  auto own = options;
  own.resources.ranks = &ranks;
  return ranks.size() == 1 ? pipeline::search_as_given(own) : run::run_among(ranks, own, pipeline::search_as_given);
}

}  // namespace detent
