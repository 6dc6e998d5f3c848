// search(): what candidates cost, the front of their choices, and the models that are measured on it.
#include "pipeline/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "config/enum_names.h"
#include "config/validate.h"
#include "data/source.h"
#include "detent/bench.h"
#include "onnx/model.h"
#include "pipeline/run.h"
#include "pipeline/search_candidates.h"
#include "pipeline/search_points.h"
#include "pipeline/stages.h"
#include "pipeline/stages/open_and_deploy.h"
#include "remedies/remedies.h"
#include "run/comparison/outcome.h"
#include "run/comparison/pairing.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/files/run_directory.h"
#include "run/records/run_report.h"
#include "searching/front.h"
#include "shim/library.h"
#include "shim/shared_work.h"

namespace detent {

namespace fs = std::filesystem;

namespace pipeline {

namespace {

constexpr double kMilli = 1e3;
constexpr const char* kFloat = "fp32";  // the name of the float model
constexpr double kNoise = 0.01;         // of times, below which two are the same
constexpr searching::Margins kAny{kNoise, kNoise, kNoise};
// Mixtures are picked by what the samples of the search say of them: what they gain beside a format alone may be luck.
// Of errors most of all: one that was 0.5 dB better on the 8 samples of a search was 5 dB worse on others.
constexpr searching::Margins kClearly{0.5, 0.1, 0.1};

searching::Costs costs_of(const SearchPoint& point) {
  return {point.error, point.seconds, static_cast<double>(point.bytes)};
}

// How far a point is from what is asked for: 0 where it meets all, else the largest excess as a share of its limit.
double excess(const SearchOptions& options, const SearchPoint& point, double seconds) {
  double worst = 0;
  if (options.max_latency) worst = std::max(worst, seconds / *options.max_latency - 1);
  if (options.weights_only.max_size)
    worst = std::max(worst, static_cast<double>(point.bytes) / static_cast<double>(*options.weights_only.max_size) - 1);
  if (const auto& target = options.accuracy.target) {
    const double value = point.value.value_or(0);
    if (value < *target) worst = std::max({worst, (*target - value) / std::abs(*target), 1e-9});
  }
  return worst;
}

double excess(const SearchOptions& options, const SearchPoint& point) { return excess(options, point, point.seconds); }

std::string limits_of(const SearchOptions& options) {
  std::vector<std::string> limits;
  if (options.max_latency) limits.push_back(fmt::format("--max-latency {:.4g}ms", kMilli * *options.max_latency));
  if (options.weights_only.max_size)
    limits.push_back(fmt::format("--max-size {}", format_size(*options.weights_only.max_size)));
  if (options.accuracy.target) limits.push_back(fmt::format("--accuracy-target {}", *options.accuracy.target));
  return fmt::format("{}", fmt::join(limits, " with "));
}

std::string figures_of(const SearchOptions& options, const SearchPoint& point, double seconds) {
  const auto value = options.accuracy.target ? fmt::format(", {:.6g}", point.value.value_or(0)) : std::string();
  return fmt::format("{:.4g} ms, {}, {:.1f} dB{}", kMilli * seconds, format_size(point.bytes), point.sqnr_db, value);
}

using Less = std::function<bool(const SearchPoint&, const SearchPoint&)>;

bool smaller(const SearchPoint& a, const SearchPoint& b) { return a.bytes < b.bytes; }
bool faster(const SearchPoint& a, const SearchPoint& b) { return a.seconds < b.seconds; }
bool is_exact(const SearchPoint& point) { return std::isinf(point.sqnr_db) && point.sqnr_db > 0; }

bool nearer(const SearchPoint& a, const SearchPoint& b) { return a.error < b.error; }

void choose(std::vector<SearchPoint*>& fit, const Less& less, const char* why) {
  if (fit.empty()) return;
  (*std::min_element(fit.begin(), fit.end(), [&](const auto* a, const auto* b) {
    return less(*a, *b);
  }))->chosen.emplace_back(why);
}

// Sets SearchPoint::chosen. Throws resource, with the nearest point, where limits are given that none meets.
void choose_points(const SearchOptions& options, std::vector<SearchPoint>& points) {
  const bool limited = options.max_latency || options.weights_only.max_size;
  const bool asked = limited || options.accuracy.target;
  std::vector<SearchPoint*> fit, others;
  for (auto& point : points) {
    const bool is_float = is_exact(point);  // by its name, or since nothing of it is better in integers
    const bool is_useful = asked || point.sqnr_db >= run::kCloseDb;
    const bool may_be_chosen = !is_float || (limited && (options.may_be_float || point.name != kFloat));
    if (!is_float) others.push_back(&point);
    if (excess(options, point) == 0 && is_useful && may_be_chosen) fit.push_back(&point);
  }
  if (fit.empty() && asked) {
    if (others.empty()) others.push_back(&points.front());
    const auto& nearest = **std::min_element(others.begin(), others.end(), [&](const auto* a, const auto* b) {
      return excess(options, *a) < excess(options, *b);
    });
    throw resource_error(fmt::format("none of {} measured models meets {}; the nearest is {}: {}", points.size(),
                                     limits_of(options), nearest.name, figures_of(options, nearest, nearest.seconds)),
                         "give that much, or more of --points");
  }
  if (std::any_of(fit.begin(), fit.end(), [](const auto* point) { return point->on_front; }))
    std::erase_if(fit, [](const auto* point) { return !point->on_front; });
  if (!limited) {
    choose(fit, smaller, "smallest");
    choose(fit, faster, "fastest");
    choose(fit, nearer, "most accurate");
  } else if (!options.accuracy.target) {
    choose(fit, nearer, "meets the limits");
  } else {
    choose(fit, options.max_latency ? smaller : faster, "meets the limits");
  }
}

// An entry of SearchOptions::machines.
struct Machine {
  std::string name;
  std::filesystem::path kernel_table;
  std::uint64_t threads = 1;
  std::optional<std::uint64_t> memory;  // bytes for all instances; unset: no limit
  double price = 0;                     // of an hour
};

// A model on one of the machines.
struct Offered {
  std::size_t point = 0;          // of the search's points
  double seconds = 0;             // expected of a request there
  std::uint64_t peak_memory = 0;  // of an instance
};

// `seconds` of each point, by machine.
Error no_machine_error(const SearchOptions& options, const std::vector<SearchPoint>& points,
                       const std::vector<Machine>& machines,
                       const std::vector<std::vector<std::optional<double>>>& seconds) {
  double least = std::numeric_limits<double>::infinity();
  std::string nearest;
  for (std::size_t m = 0; m < machines.size(); ++m) {
    for (std::size_t p = 0; p < points.size(); ++p) {
      if (!seconds[m][p] || excess(options, points[p], *seconds[m][p]) >= least) continue;
      least = excess(options, points[p], *seconds[m][p]);
      nearest =
          fmt::format("{} on {}: {}", points[p].name, machines[m].name, figures_of(options, points[p], *seconds[m][p]));
    }
  }
  const auto limits = limits_of(options);
  return resource_error(
      fmt::format("none of {} serves{}{} in its memory; the nearest is {}", count_with_noun(machines.size(), "machine"),
                  limits.empty() ? "" : " within ", limits, nearest),
      "give more, or another machine");
}

// Whether a machine that takes so many seconds for a request can serve the point within the limits.
bool serves(const SearchOptions& options, const SearchPoint& point, double seconds) {
  return excess(options, point, seconds) == 0 && (options.accuracy.target || point.sqnr_db >= run::kCloseDb);
}

constexpr const char* kExample =
    R"(write {"machines": [{"name": "small", "kernel-table": "small.json", "threads": 4, "memory": "8GiB", "price": 0.17}]})";

class Entry {
 public:
  Entry(const fs::path& file, std::size_t number, const nlohmann::ordered_json& entry)
      : file_(file), number_(number), entry_(entry) {
    if (!entry.is_object()) throw wrong("is no object");
    const std::set<std::string> known{"name", "kernel-table", "threads", "memory", "price"};
    for (const auto& [key, value] : entry.items()) {
      if (!known.contains(key)) throw wrong(fmt::format("has an unknown member '{}'", key));
    }
  }

  Machine machine() const {
    Machine machine;
    machine.name = text("name");
    const bool is_plain = std::all_of(machine.name.begin(), machine.name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (machine.name.empty() || !is_plain) throw wrong("needs a name of letters, digits, '-', '_' and '.'");
    constexpr std::size_t kLongest = 100;  // it becomes part of a file's name
    if (machine.name.size() > kLongest) throw wrong(fmt::format("has a name of more than {} characters", kLongest));
    machine.kernel_table = file_.parent_path() / text("kernel-table");
    const double threads = number("threads");
    if (threads < 1 || threads > 4096 || threads != std::floor(threads))
      throw wrong("'threads' is not a whole number from 1 to 4096");
    machine.threads = static_cast<std::uint64_t>(threads);
    machine.price = number("price");
    constexpr double kMost = 1e12;
    if (machine.price < 0 || machine.price > kMost) throw wrong("'price' is not from 0 to 10^12");
    if (entry_.contains("memory")) machine.memory = bytes(text("memory"));
    return machine;
  }

 private:
  Error wrong(const std::string& what) const {
    return bad_input(fmt::format("--machines '{}': machine {} {}", file_.string(), number_, what), kExample);
  }

  std::string text(const char* member) const {
    if (!entry_.contains(member) || !entry_.at(member).is_string())
      throw wrong(fmt::format("needs a text '{}'", member));
    return entry_.at(member).get<std::string>();
  }

  double number(const char* member) const {
    if (!entry_.contains(member) || !entry_.at(member).is_number())
      throw wrong(fmt::format("needs a number '{}'", member));
    return entry_.at(member).get<double>();
  }

  std::uint64_t bytes(const std::string& text) const {
    try {
      return parse_size(text);
    } catch (const Error& e) {
      throw wrong(fmt::format("'memory': {}", e.what()));
    }
  }

  const fs::path& file_;
  std::size_t number_;
  const nlohmann::ordered_json& entry_;
};

ServingMachine serving(const Machine& machine, const Offered& offered, const SearchPoint& point) {
  ServingMachine serving;
  serving.machine = machine.name;
  serving.model = point.name;
  serving.seconds = offered.seconds;
  if (!(offered.seconds > 0))
    throw bad_input(fmt::format("machine '{}': its kernel table gives model '{}' no time", machine.name, point.name),
                    "measure its kernels again: a table with times of 0 tells nothing");
  serving.instances = machine.threads;
  if (machine.memory && offered.peak_memory > 0)
    serving.instances = std::min(machine.threads, *machine.memory / offered.peak_memory);
  serving.requests = static_cast<double>(serving.instances) / offered.seconds;
  serving.peak_memory = offered.peak_memory;
  serving.price = machine.price;
  return serving;
}

std::vector<Machine> read_machines(const fs::path& path) {
  const auto root = run::read_json(path);
  if (!root.contains("machines") || !root.at("machines").is_array() || root.at("machines").empty())
    throw bad_input(fmt::format("--machines '{}' has no list 'machines'", path.string()), kExample);
  std::vector<Machine> machines;
  std::set<std::string> names;
  for (const auto& entry : root.at("machines")) {
    machines.push_back(Entry(path, machines.size() + 1, entry).machine());
    if (!names.insert(machines.back().name).second)
      throw bad_input(fmt::format("--machines '{}': two machines are '{}'", path.string(), machines.back().name),
                      "give each its own name");
  }
  return machines;
}

// 0 where it was not measured, of which a note tells.
std::vector<std::uint64_t> peak_memories(const SearchOptions& options, const std::vector<fs::path>& models,
                                         std::stop_token stop, std::vector<std::string>& notes) {
  auto bench = options;
  bench.models = models;
  if (bench.samples != nullptr) bench.samples->rewind();
  bench.max_samples = 1;
  bench.threads = 1;
  bench.runs = 1;
  bench.program = shim::find_program().value_or("");
  bench.resources = {};
  bench.progress = {};
  bench.stop = std::move(stop);
  const auto told = detent::bench(bench);
  notes.insert(notes.end(), told.notes.begin(), told.notes.end());
  std::vector<std::uint64_t> bytes;
  for (const auto& model : told.models) bytes.push_back(model.peak_memory.value_or(0));
  return bytes;
}

// Of each machine the offered model that serves most requests, cheapest request first, with how many of each machine
// serve `requests` a second for the least. `offered` is by machine; machines without any are left out.
std::vector<ServingMachine> serve(const std::vector<Machine>& machines,
                                  const std::vector<std::vector<Offered>>& offered,
                                  const std::vector<SearchPoint>& points, double requests) {
  std::vector<ServingMachine> all;
  for (std::size_t m = 0; m < machines.size(); ++m) {
    std::optional<ServingMachine> best;
    for (const auto& each : offered[m]) {
      auto one = serving(machines[m], each, points[each.point]);
      if (one.instances > 0 && (!best || one.requests > best->requests)) best = std::move(one);
    }
    if (best) all.push_back(std::move(*best));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.price * b.requests < b.price * a.requests; });
  if (all.empty()) return all;
  std::vector<searching::Offer> offers;
  for (const auto& each : all) offers.push_back({each.requests, each.price});
  const auto counts = searching::cheapest_fleet(offers, requests);
  if (counts.empty())
    throw usage_error(fmt::format("--requests: no number of these machines serves {} a second", requests),
                      "ask for fewer");
  for (std::size_t m = 0; m < all.size(); ++m) all[m].needed = counts[m];
  return all;
}

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
const double kFar = std::pow(10, -run::kCloseDb / 10);  // an error that is no longer close

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
        shared_{.observed = options.resources.memory_budget ? nullptr : &observed_},
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
    fill_result();
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
    observed_.clear();
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
      if (formats.empty() || expected[p].error > run::kUselessError ||
          (any_near && !is_near_limits(place, expected[p])))
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
    return !options_.weights_only.max_size ||
           costs.bytes <= kMargin * static_cast<double>(*options_.weights_only.max_size);
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

  void fill_result() {
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
  std::map<std::string, calibration::Statistics> observed_;  // until the formats alone are made; not under a budget
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

void mark_front(std::vector<SearchPoint>& points) {
  for (auto& point : points) {
    point.on_front = std::none_of(points.begin(), points.end(), [&](const auto& other) {
      return searching::dominates(costs_of(other), costs_of(point), kNoise, point.single ? kClearly : kAny);
    });
  }
}

}  // namespace pipeline

SearchResult search(const SearchOptions& options) {
  config::validate(options, config::kSearch);
  if (options.resources.ranks != nullptr) return pipeline::search_as_given(options);  // of a run that has joined them
  auto ranks = shim::Ranks::join();
  auto own = options;
  own.resources.ranks = &ranks;
  return ranks.size() == 1 ? pipeline::search_as_given(own) : run::run_among(ranks, own, pipeline::search_as_given);
}

}  // namespace detent
