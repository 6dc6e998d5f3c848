#include "pipeline/search_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/small_file.h"
#include "config/formats.h"
#include "config/presets.h"
#include "detent/quantize.h"
#include "onnx/model.h"
#include "pipeline/stages/mixed.h"
#include "planning/limits.h"
#include "profile/meters.h"
#include "run/latency_change.h"
#include "run/model_fingerprint.h"
#include "run/outputs.h"
#include "run/proof.h"
#include "run/samples.h"
#include "run/score_command.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kJudgedShare = 4;  // one sample in so many,
constexpr std::size_t kJudgedAtLeast = 8;
constexpr std::size_t kTimedTogether = 6;
constexpr std::size_t kTimedSamples = 4;
constexpr double kSecondsEach = 0.15;  // of timing a model, at the least

double error_as_db(double error) { return -10 * std::log10(error); }

}  // namespace

SearchPoints::SearchPoints(const SearchOptions& options, Run& run, std::filesystem::path folder)
    : options_(options),
      run_(run),
      folder_(std::move(folder)),
      inputs_(run::input_specs(onnx::read_model(options.model))) {
  paths::make_folder(folder_);
  open_samples();
  const auto all = source_->file_count();
  judged_ = std::min(all, std::max(all / kJudgedShare, kJudgedAtLeast));
  of_samples_ = run::fingerprint_of(*source_);
}

// Anew each time: making a model reads the same stream in between.
void SearchPoints::open_samples() {
  source_.reset();
  if (options_.samples != nullptr) options_.samples->rewind();
  given_ = run_.open_samples(inputs_);
  source_.emplace(*given_, run::ContentOrderOptions{});
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
  prove.judge(*source_, source_->file_count() - judged_, judged_);
  run::write_output(model, options, &prove, told);
  point.bytes = told.model_bytes_after;
  return *prove.fidelity();
}

run::DeployedFidelity SearchPoints::write_alone(SearchPoint& point, const std::filesystem::path& file) {
  auto options = base_of(options_);
  options.format = point.name;
  options.config = preset_config("balanced");
  std::vector<std::string_view> given;
  config::resolve(options, given);
  options.resources.work_dir = folder_;
  options.output = file;
  if (options.samples != nullptr) options.samples->rewind();
  const auto made = quantize(options);
  point.bytes = made.model_bytes_after;
  inferences_ += 3 * made.samples;
  open_samples();
  source_->skip(source_->file_count() - judged_);
  return run::deployed_fidelity(*run_.runtime, options_.model, file, *source_, judged_, run::guard_options(options));
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

bool SearchPoints::make(SearchPoint point) {
  const auto scope = run_.profiler.scope("Models of the front");
  const auto file = file_of(point);
  try {
    if (!recall(point, file)) {
      judge(point, file, point.node_formats.empty() ? write_alone(point, file) : write_mixture(point, file));
      remember(point, file);
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input && e.kind() != ErrorKind::usage && e.kind() != ErrorKind::device) throw;
    note(fmt::format("not tried: {}: {}", point.name, e.what()));
    return false;
  }
  made_.push_back({std::move(point), file});
  if (options_.progress) options_.progress("models", made_.size(), 0);
  return true;
}

void SearchPoints::judge(SearchPoint& point, const std::filesystem::path& file, const run::DeployedFidelity& found) {
  inferences_ += 2 * judged_;
  point.error = std::pow(10, -found.sqnr_db / 10);
  point.sqnr_db = error_as_db(point.error);
  const auto& accuracy = options_.accuracy;
  if (accuracy.metric == AccuracyMetric::command) {
    point.value = run::share_of_float_score(accuracy, options_.model, file, float_score_, options_.stop);
  } else if (accuracy.target) {
    point.value = run::value_of(found, accuracy.metric);
  }
}

std::vector<LatencyChange> SearchPoints::measure(const std::vector<std::filesystem::path>& files, std::uint64_t bytes) {
  open_samples();
  const auto measured =
      run::measure_latencies(*run_.runtime,
                             {.float_model = options_.model,
                              .source = &*source_,
                              .samples = kTimedSamples,
                              .threads = options_.threads,
                              .run_seconds = kSecondsEach * static_cast<double>(files.size() + 1) / 0.03,
                              .needed_memory = profile::memory_now().resident + 2 * bytes,
                              .memory_budget = options_.resources.memory_budget.value_or(planning::available_memory()),
                              .stop = options_.stop},
                             files);
  for (const auto& text : measured.notes) note(text);
  if (measured.changes.empty())
    throw resource_error(measured.notes.empty() ? "latency was not measured" : measured.notes.front(),
                         "raise --memory-budget");
  if (float_seconds_ == 0) float_seconds_ = measured.changes.front().before.median;
  return measured.changes;
}

void SearchPoints::time() {
  const auto scope = run_.profiler.scope("Latency");
  if (made_.empty() && float_seconds_ == 0) measure({options_.model}, run_.result.model_bytes_before);
  while (timed_ < made_.size()) {
    const auto count = std::min(kTimedTogether, made_.size() - timed_);
    std::vector<std::filesystem::path> files;
    std::uint64_t bytes = 0;
    for (std::size_t m = timed_; m < timed_ + count; ++m) {
      files.push_back(made_[m].file);
      bytes += made_[m].told.bytes;
    }
    const auto changes = measure(files, bytes);
    for (std::size_t m = 0; m < count; ++m) {
      const auto& change = changes[m];
      // On a busy machine the time of processors tells more.
      const bool doubtful = change.before.is_doubtful() || change.after.is_doubtful();
      made_[timed_ + m].told.seconds = (doubtful ? change.after.cpu_ratio : change.after.ratio) * float_seconds_;
      inferences_ += change.after.runs;
    }
    timed_ += count;
  }
}

bool SearchPoints::keep_timed() {
  made_.erase(made_.begin() + static_cast<std::ptrdiff_t>(timed_), made_.end());
  return timed_ > 0;
}

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

}  // namespace detent::pipeline
