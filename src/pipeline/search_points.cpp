#include "pipeline/search_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/process.h"
#include "base/text.h"
#include "config/formats.h"
#include "config/presets.h"
#include "config/results.h"
#include "config/validate.h"
#include "detent/quantize.h"
#include "onnx/model.h"
#include "onnx/write.h"
#include "pipeline/search_candidates.h"
#include "pipeline/stages.h"
#include "pipeline/stages/formats.h"
#include "planning/memory.h"
#include "profile/meters.h"
#include "profile/report.h"
#include "remedies/evaluator.h"
#include "run/command.h"
#include "run/comparison/latency.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"
#include "run/model/format_choice.h"
#include "run/samples/samples.h"
#include "searching/front.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kJudgedShare = 4;  // one sample in so many,
constexpr std::size_t kJudgedAtLeast = 8;
constexpr std::size_t kTimedTogether = 6;
constexpr std::size_t kTimedSamples = 4;
constexpr std::size_t kTurns = 5;      // with ten, timing took half of the search of a sentence encoder
constexpr double kSecondsEach = 0.15;  // of timing a model, at the least

double error_as_db(double error) { return -10 * std::log10(error); }

// Of a model that is timed: as it is read, as kernels pack it, and its activations.
std::uint64_t beside_others(std::uint64_t bytes, std::uint64_t activations) { return 2 * bytes + activations; }

std::uint64_t memory_limit(const SearchOptions& options) {
  return options.resources.memory_budget.value_or(planning::available_memory());
}

}  // namespace

SearchPoints::SearchPoints(const SearchOptions& options, Run& run, std::filesystem::path folder,
                           std::stop_token waiting)
    : options_(options),
      run_(run),
      folder_(std::move(folder)),
      waiting_(std::move(waiting)),
      inputs_(run::input_specs(onnx::read_model(options.model))) {
  paths::make_folder(folder_);
  float_results_.emplace(folder_, run::guard_options(run.options).disk);
  open_samples();
  const auto all = source_->sample_count();
  judged_ = std::min(all, std::max(all / kJudgedShare, kJudgedAtLeast));
  of_samples_ = run::fingerprint_of(*source_);
}

// Anew each time: making a model reads the same stream in between.
void SearchPoints::open_samples() {
  source_.reset();
  if (options_.samples != nullptr) options_.samples->rewind();
  given_ = run_.open_samples(inputs_);
  const auto ahead = remedies::share_of_budget(options_.resources, run::ContentOrderOptions().ahead);
  source_.emplace(*given_, run::ContentOrderOptions{.ahead = ahead});
}

void SearchPoints::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(std::move(text));
}

run::DeployedFidelity SearchPoints::write_mixture(SearchPoint& point, const std::filesystem::path& file) {
  QuantizeResult told;
  auto model = mixture(run_, point.node_formats, told);
  auto options = run_.options;
  options.output = file;
  open_samples();
  run::Prover prove(options, &*run_.runtime);
  prove.judge(*source_, source_->sample_count() - judged_, judged_, &*float_results_);
  run::write_output(model, options, &prove, told);
  point.bytes = told.model_bytes_after;
  return *prove.fidelity();
}

run::DeployedFidelity SearchPoints::write_alone(SearchPoint& point, const std::filesystem::path& file) {
  auto options = base_of(options_);
  options.format = point.name;
  if (point.name == kInt8ForSize) {
    options.format = config::name_of(config::NodeFormat::int8);
    options.optimize_for = OptimizeFor::size;
  }
  options.config = preset_config("balanced");
  std::vector<std::string_view> given;
  config::resolve(options, given);
  options.resources.work_dir = folder_;
  options.output = file;
  if (options.samples != nullptr) options.samples->rewind();
  config::validate(options);
  const auto made = run_stages(options, {.observed = run_.shared.observed});
  point.bytes = made.model_bytes_after;
  inferences_ += 3 * made.samples;
  if (made.accuracy) inferences_ += 2 * made.accuracy->samples * made.accuracy->sensitivities.size();  // each alone
  open_samples();
  source_->skip(source_->sample_count() - judged_);
  return run::deployed_fidelity(*run_.runtime, options_.model, file, *source_, judged_, run::guard_options(options), {},
                                &*float_results_);
}

// By what the model follows from beside the float one.
std::filesystem::path SearchPoints::file_of(const SearchPoint& point) const {
  Hasher hasher;
  hasher.add(of_samples_.text());
  hasher.add(options_.accuracy.command + "\n");
  hasher.add(static_cast<std::uint64_t>(options_.accuracy.metric));
  if (point.node_formats.empty()) hasher.add(point.name);
  for (const auto& entry : point.node_formats) hasher.add(entry + "\n");
  return folder_ / fmt::format("{}.onnx", hasher.result().text());
}

bool SearchPoints::recall(SearchPoint& point, const std::filesystem::path& file) const {
  const auto record = std::filesystem::path(file).replace_extension("json");
  if (!paths::exists(record) || !paths::exists(file) || options_.accuracy.score) return false;
  const auto known = parse_sealed_json(read_small_file(record.string(), "a measured model"));
  if (!known) return false;
  try {
    point.bytes = known->at("bytes").get<std::uint64_t>();
    point.error = known->at("error").get<double>();
    point.sqnr_db = error_as_db(point.error);
    if (known->contains("value")) point.value = known->at("value").get<double>();
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  const bool wants_value = options_.accuracy.target || options_.accuracy.metric == AccuracyMetric::command;
  return !wants_value || point.value.has_value();
}

void SearchPoints::remember(const SearchPoint& point, const std::filesystem::path& file) const {
  nlohmann::json known{{"bytes", point.bytes}, {"error", point.error}};
  if (point.value) known["value"] = *point.value;
  AtomicFile record(std::filesystem::path(file).replace_extension("json"));
  record.write(as_byte_span(sealed_json_text(std::move(known))));
  record.commit();
}

std::vector<Attempt> SearchPoints::attempt(std::vector<SearchPoint> points) {
  const auto scope = run_.profiler.scope("Models of the front");
  std::vector<Attempt> attempts;
  std::vector<std::size_t> missing;
  std::vector<SearchPoint> wanted;
  for (auto& point : points) {
    attempts.push_back({std::move(point), {}});
    if (recall(attempts.back().point, file_of(attempts.back().point))) continue;
    missing.push_back(attempts.size() - 1);
    wanted.push_back(attempts.back().point);
  }
  if (wanted.empty()) return attempts;
  auto made = share(broadcast_points(ranks(), wanted, waiting_));
  if (cut_off_) throw interrupted();
  for (std::size_t w = 0; w < made.size(); ++w) {
    auto& attempt = attempts[missing[w]];
    const auto expected = std::exchange(attempt, std::move(made[w]));
    attempt.point.single = expected.point.single;
    attempt.point.expected_error = expected.point.expected_error;
    attempt.point.expected_seconds = expected.point.expected_seconds;
  }
  return attempts;
}

void SearchPoints::help() {
  for (;;) {
    const auto wanted = broadcast_points(ranks(), {}, waiting_);
    if (wanted.empty()) return;
    share(wanted);
  }
}

void SearchPoints::dismiss_helpers() { broadcast_points(ranks(), {}, waiting_); }

// Of so many points, those that fall to a rank: the n-th of them, after n rounds of all ranks.
std::vector<SearchPoint> SearchPoints::points_of(int rank, const std::vector<SearchPoint>& wanted) const {
  std::vector<SearchPoint> points;
  const auto size = static_cast<std::size_t>(shim::size_of(ranks()));
  for (auto w = static_cast<std::size_t>(rank); w < wanted.size(); w += size) points.push_back(wanted[w]);
  return points;
}

// On rank 0 what became of each. All of a rank's own work comes before any waiting.
std::vector<Attempt> SearchPoints::share(const std::vector<SearchPoint>& wanted) {
  std::vector<PointShare> shares;
  shares.push_back(make_share(points_of(shim::rank_of(ranks()), wanted)));
  if (shim::size_of(ranks()) > 1) {
    ranks()->gather(
        written(shares[0]),
        [&](int rank, std::span<const std::byte> bytes) {
          shares.push_back(read_share(rank, bytes, points_of(rank, wanted)));
        },
        waiting_);
    const auto mine = files_of(shares[0]);
    shim::gather_files(ranks(), folder_, mine, waiting_);
    if (shim::rank_of(ranks()) != 0) {
      for (const auto& name : mine) paths::remove(folder_ / name);
      return {};
    }
  }
  std::vector<Attempt> all(wanted.size());
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    cut_off_ = cut_off_ || shares[rank].cut_off;
    if (rank > 0) inferences_ += shares[rank].inferences;
    for (std::size_t n = 0; n < shares[rank].attempts.size(); ++n) {
      auto& attempt = all[rank + n * shares.size()] = std::move(shares[rank].attempts[n]);
      if (rank > 0 && attempt.reason.empty()) attempt.reason = reason_against(attempt.point, &SearchPoints::finish);
    }
  }
  return all;
}

PointShare SearchPoints::make_share(const std::vector<SearchPoint>& points) {
  const bool finishes = shim::rank_of(ranks()) == 0;
  const shim::Apart apart(ranks());
  const auto before = inferences_;
  PointShare share;
  try {
    for (const auto& point : points) {
      auto& [made, reason] = share.attempts.emplace_back(Attempt{point, {}});
      reason = reason_against(made, &SearchPoints::make);
      if (reason.empty() && finishes) reason = reason_against(made, &SearchPoints::finish);
      const auto done = made_.size() + share.attempts.size();
      if (options_.progress) options_.progress("models", done, std::max(done, made_.size() + points.size()));
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || waiting_.stop_requested()) throw;
    share.attempts.clear();
    share.cut_off = true;
  }
  share.inferences = inferences_ - before;
  return share;
}

// Models and their data, by what all their names begin with.
std::vector<std::string> SearchPoints::files_of(const PointShare& share) const {
  std::vector<std::string> names;
  const auto entries = paths::entries_of(folder_);
  for (const auto& attempt : share.attempts) {
    const auto stem = file_of(attempt.point).stem().string();
    for (const auto& entry : entries) {
      if (attempt.reason.empty() && entry.filename().string().starts_with(stem))
        names.push_back(entry.filename().string());
    }
  }
  return names;
}

std::string SearchPoints::reason_against(SearchPoint& point, void (SearchPoints::*work)(SearchPoint&)) {
  try {
    (this->*work)(point);
    return {};
  } catch (const Error& e) {
    const bool over_budget = e.kind() == ErrorKind::resource && options_.resources.memory_budget;
    if (e.kind() != ErrorKind::bad_input && e.kind() != ErrorKind::usage && e.kind() != ErrorKind::device &&
        !over_budget)
      throw;
    return e.what();
  }
}

void SearchPoints::make(SearchPoint& point) {
  trim_heap();  // of the model before
  failpoint("search.point", options_.stop);
  const auto file = file_of(point);
  const bool float_has_run = !float_results_->is_empty();
  const auto found = point.node_formats.empty() ? write_alone(point, file) : write_mixture(point, file);
  inferences_ += (float_has_run ? 1 : 2) * judged_;
  point.error = std::pow(10, -found.sqnr_db / 10);
  point.sqnr_db = error_as_db(point.error);
  const auto& accuracy = options_.accuracy;
  if (accuracy.target && accuracy.metric != AccuracyMetric::command)
    point.value = run::metric_value(found, accuracy.metric);
}

// What rank 0 alone does: the user's program may be nowhere else.
void SearchPoints::finish(SearchPoint& point) {
  const auto& accuracy = options_.accuracy;
  const auto file = file_of(point);
  if (accuracy.metric == AccuracyMetric::command)
    point.value = run::share_of_float_score(accuracy, options_.model, file, float_score_, options_.stop);
  remember(point, file);
}

bool SearchPoints::keep(Attempt attempt) {
  auto& [point, reason] = attempt;
  if (!reason.empty()) {
    note(fmt::format("not tried: {}: {}", point.name, reason));
    return false;
  }
  auto file = file_of(point);
  made_.push_back({std::move(point), std::move(file)});
  return true;
}

std::uint64_t SearchPoints::memory_to_time(std::uint64_t bytes) const {
  return beside_others(bytes, run_.runtime->peak_activation_bytes());
}

std::vector<LatencyChange> SearchPoints::measure(const std::vector<std::filesystem::path>& files,
                                                 std::uint64_t memory_of_all) {
  open_samples();
  const auto limit = memory_limit(options_);
  const auto measured = run::measure_latencies(
      *run_.runtime,
      {.float_model = options_.model,
       .source = &*source_,
       .samples = kTimedSamples,
       .turns = kTurns,
       .threads = options_.threads,
       .run_seconds = kSecondsEach * static_cast<double>(files.size() + 1) / 0.03,
       .model_bytes = static_cast<std::uint64_t>(files.size() + 1) * run_.result.model_bytes_before,
       .memory = profile::memory_now().resident + memory_to_time(run_.result.model_bytes_before),
       .one_open = memory_of_all > limit,
       .memory_budget = limit,
       .stop = options_.stop},
      files);
  // Beside latencies there is a note where the machine was busy: once is enough.
  const bool is_busy = !measured.changes.empty() && !measured.notes.empty();
  if (!is_busy || !was_busy_) {
    for (const auto& text : measured.notes) note(text);
  }
  was_busy_ = was_busy_ || is_busy;
  if (measured.changes.empty())
    throw resource_error(measured.notes.empty() ? "latency was not measured" : measured.notes.front(),
                         "raise --memory-budget");
  if (float_seconds_ == 0) float_seconds_ = measured.changes.front().before.median;
  return measured.changes;
}

void SearchPoints::time() {
  const auto scope = run_.profiler.scope("Latency");
  trim_heap();
  const auto before = profile::memory_now().resident + memory_to_time(run_.result.model_bytes_before);
  // All others together take no more than the float model, as in timing one of them.
  const auto most = std::min(memory_limit(options_), before + memory_to_time(run_.result.model_bytes_before));
  if (made_.empty() && float_seconds_ == 0)
    measure({options_.model}, before + memory_to_time(run_.result.model_bytes_before));
  while (timed_ < made_.size()) {
    std::vector<std::filesystem::path> files;
    auto memory = before;
    for (auto m = timed_; m < made_.size() && files.size() < kTimedTogether; ++m) {
      const auto more = memory_to_time(made_[m].told.bytes);
      if (!files.empty() && memory + more > most) break;
      memory += more;
      files.push_back(made_[m].file);
    }
    for (const auto& change : measure(files, memory)) {
      // On a busy machine the time of processors tells more.
      const bool doubtful = change.before.is_doubtful() || change.after.is_doubtful();
      made_[timed_++].told.seconds = (doubtful ? change.after.cpu_ratio : change.after.ratio) * float_seconds_;
      inferences_ += change.after.runs;
    }
  }
}

bool SearchPoints::keep_timed() {
  made_.erase(made_.begin() + static_cast<std::ptrdiff_t>(timed_), made_.end());
  return timed_ > 0;
}

void check_memory_to_time(const SearchOptions& options, std::uint64_t activations) {
  const auto bytes = run::size_on_disk(onnx::read_model(options.model));
  const auto needed = profile::memory_now().resident + beside_others(bytes, activations);
  if (needed <= memory_limit(options)) return;
  const auto [need, left] = format_sizes(needed, memory_limit(options));
  throw resource_error(
      fmt::format("a search times the float model, which takes at least {} of memory; the limit is {}", need, left),
      "raise --memory-budget, or quantize to one format");
}

QuantizeOptions base_of(const SearchOptions& options) {
  Options base;
  base.model = options.model;
  base.calibration_data = options.calibration_data;
  base.kernel_table = options.kernel_table;
  base.runtime = options.runtime;
  base.samples = options.samples;
  base.max_samples = options.max_samples;
  base.batch_size = options.batch_size;
  base.input_values = options.input_values;
  base.threads = options.threads;
  base.resources = options.resources;
  base.resources.time_limit.reset();
  base.resources.resume = false;
  base.bench = false;
  base.stop = options.stop;
  return base;
}

SearchPoint float_point(const SearchOptions& options) {
  SearchPoint point;
  point.name = "fp32";
  point.single = true;
  point.sqnr_db = std::numeric_limits<double>::infinity();
  point.bytes = run::size_on_disk(onnx::read_model(options.model));
  if (options.accuracy.target || options.accuracy.metric == AccuracyMetric::command) point.value = 1;
  if (options.accuracy.metric == AccuracyMetric::sqnr) point.value = point.sqnr_db;
  return point;
}

namespace {

// Numbers travel by their bits: JSON has none that are infinite.
std::uint64_t bits_of(double number) { return std::bit_cast<std::uint64_t>(number); }
double number_of(const nlohmann::json& bits) { return std::bit_cast<double>(bits.get<std::uint64_t>()); }

Attempt read_attempt(const nlohmann::json& entry, SearchPoint point) {
  Attempt attempt{std::move(point), name_of_json(entry.at("reason")).value()};
  attempt.point.bytes = entry.at("bytes").get<std::uint64_t>();
  attempt.point.error = number_of(entry.at("error"));
  attempt.point.sqnr_db = number_of(entry.at("sqnr_db"));
  if (entry.contains("value")) attempt.point.value = number_of(entry.at("value"));
  return attempt;
}

}  // namespace

// A name, its formats, and an empty word at the end of each point.
std::vector<SearchPoint> broadcast_points(shim::Ranks* ranks, const std::vector<SearchPoint>& points,
                                          const std::stop_token& stop) {
  std::vector<std::string> words;
  for (const auto& point : points) {
    words.push_back(point.name);
    words.insert(words.end(), point.node_formats.begin(), point.node_formats.end());
    words.emplace_back();
  }
  std::vector<SearchPoint> wanted;
  bool opens = true;
  for (auto& word : shim::broadcast_names(ranks, std::move(words), stop)) {
    if (word.empty()) {
      opens = true;
    } else if (std::exchange(opens, false)) {
      wanted.emplace_back().name = std::move(word);
    } else {
      wanted.back().node_formats.push_back(std::move(word));
    }
  }
  return wanted;
}

std::vector<std::byte> written(const PointShare& share) {
  nlohmann::json told{{"inferences", share.inferences}, {"cut_off", share.cut_off}};
  told["attempts"] = nlohmann::json::array();
  for (const auto& [point, reason] : share.attempts) {
    told["attempts"].push_back({{"reason", json_of_name(reason)},
                                {"bytes", point.bytes},
                                {"error", bits_of(point.error)},
                                {"sqnr_db", bits_of(point.sqnr_db)}});
    if (point.value) told["attempts"].back()["value"] = bits_of(*point.value);
  }
  const auto text = json_text(told);
  const auto bytes = as_byte_span(text);
  return {bytes.begin(), bytes.end()};
}

PointShare read_share(int rank, std::span<const std::byte> bytes, const std::vector<SearchPoint>& points) {
  PointShare share;
  try {
    const auto told = parse_json(as_text(bytes)).value();
    share.inferences = told.at("inferences").get<std::uint64_t>();
    share.cut_off = told.at("cut_off").get<bool>();
    const auto& attempts = told.at("attempts");
    if (attempts.size() != (share.cut_off ? 0 : points.size()))
      throw shim::unexpected_message(rank, "models that were not asked for");
    for (std::size_t p = 0; p < attempts.size(); ++p) share.attempts.push_back(read_attempt(attempts.at(p), points[p]));
  } catch (const nlohmann::json::exception&) {
    throw shim::unexpected_message(rank, "no measured models");
  } catch (const std::bad_optional_access&) {
    throw shim::unexpected_message(rank, "no measured models");
  }
  return share;
}

namespace fs = std::filesystem;

namespace {

void write_text(const fs::path& file, std::string_view text) {
  AtomicFile out(file);
  out.write(as_byte_span(text));
  out.commit();
}

std::string config_of(const SearchPoint& point) {
  std::string text = "node-formats:\n";
  for (const auto& entry : point.node_formats) text += fmt::format("- {}\n", profile::yaml_quoted(entry));
  return text;
}

std::string file_name(std::string why) {
  std::replace(why.begin(), why.end(), ' ', '-');
  return (why == "meets-the-limits" ? "model" : why) + ".onnx";
}

// With tensors in a file beside it the model is written anew, since it names that file.
void copy_model(const fs::path& from, const fs::path& to) {
  auto model = onnx::read_model(from);
  const auto& tensors = model.graph.initializers;
  if (std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.is_external; })) {
    onnx::write_model(model, to, {});
    return;
  }
  AtomicFile copy(to);
  copy.write(model.file->bytes());
  copy.commit();
}

nlohmann::json to_json(const SearchResult& result) {
  auto out = config::result_json(result);
  config::keep_lists(out, {"points", "notes"});
  for (std::size_t i = 0; i < result.points.size(); ++i) {
    config::keep_lists(out["points"][i], {"chosen"});
    for (std::size_t n = 0; n < result.points[i].node_formats.size(); ++n)
      out["points"][i]["node_formats"][n] = json_of_name(result.points[i].node_formats[n]);
  }
  return out;
}

}  // namespace

void check_search_output(const SearchOptions& options) {
  std::error_code failed;
  const auto& folder = options.output;
  const auto name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  if (name.empty() || name == "." || name == ".." || name == "-")
    throw usage_error(fmt::format("--output '{}' is no name of a new folder", folder.string()),
                      "search writes a folder: give its name");
  if (fs::exists(folder, failed) && !fs::is_empty(folder, failed))
    throw usage_error(fmt::format("'{}' is there already", folder.string()), "give a new folder with --output");
  run::check_kernel_table(options.kernel_table);
  const auto table = fs::weakly_canonical(options.kernel_table.value_or(folder.parent_path()), failed);
  const auto within = table.lexically_relative(fs::weakly_canonical(folder, failed));
  if (options.kernel_table && !within.empty() && *within.begin() != "..")
    throw usage_error(
        fmt::format("--set kernel-table: '{}' is in the folder that is made", options.kernel_table->string()),
        "give a file outside of --output");
  const AtomicFolder claimed(folder.has_filename() ? folder : folder.parent_path());  // throws where it cannot be made
}

std::string command_of(const SearchOptions& options, const SearchPoint& point) {
  if (point.name == "fp32") return {};
  auto line = fmt::format("detent quantize {} -o {}.onnx", run::quoted(options.model.string()), point.name);
  if (!options.samples_given.empty()) {
    line += " " + options.samples_given;
  } else {
    line += " --calibration-data " +
            (options.calibration_data ? run::quoted(options.calibration_data->string()) : "SAMPLES");
  }
  if (options.max_samples > 0) line += fmt::format(" --samples {}", options.max_samples);
  if (options.batch_size > 0) line += fmt::format(" --batch-size {}", options.batch_size);
  for (const auto& value : options.input_values) line += " --input " + run::quoted(value);
  if (options.threads > 0) line += fmt::format(" --threads {}", options.threads);
  if (point.node_formats.empty()) {
    if (options.kernel_table) line += " --set " + run::quoted("kernel-table=" + options.kernel_table->string());
    return line + (point.name == kInt8ForSize ? " --format int8 --optimize-for size" : " --format " + point.name);
  }
  return line + " --config " + run::quoted((options.output / (point.name + ".yaml")).string());
}

void write_search(const SearchOptions& options, const std::vector<MadePoint>& made, SearchResult& result) {
  auto target = options.output;
  if (!target.has_filename()) target = target.parent_path();
  AtomicFolder folder(target);
  for (auto& point : result.points) {
    const auto found = std::find_if(made.begin(), made.end(), [&](const auto& m) { return m.told.name == point.name; });
    if (!point.node_formats.empty()) write_text(folder.path() / (point.name + ".yaml"), config_of(point));
    if (point.chosen.empty()) continue;
    const auto name = file_name(point.chosen.front());
    copy_model(found == made.end() ? options.model : found->file, folder.path() / name);
    point.written = target / name;
  }
  auto table = to_json(result);
  table["model"] = options.model.string();
  if (options.requests) table["requests"] = *options.requests;
  const auto text = json_text(table);
  write_text(folder.path() / "front.json", text + "\n");
  write_text(folder.path() / "front.html", searching::page(profile::script_safe(text)));
  folder.commit();
}

}  // namespace detent::pipeline
