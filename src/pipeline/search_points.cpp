#include "pipeline/search_points.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "config/formats.h"
#include "config/presets.h"
#include "onnx/model.h"
#include "planning/limits.h"
#include "profile/meters.h"
#include "run/deployed_fidelity.h"
#include "run/latency_change.h"
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

}  // namespace

SearchPoints::SearchPoints(const SearchOptions& options, const QuantizeOptions& base, const exec::Runtime& runtime,
                           std::filesystem::path folder, profile::Profiler& profiler)
    : options_(options), base_(base), runtime_(runtime), folder_(std::move(folder)), profiler_(profiler) {
  paths::make_folder(folder_);
  open_samples();
  const auto all = source_->file_count();
  judged_ = std::min(all, std::max(all / kJudgedShare, kJudgedAtLeast));
}

// Anew each time: runs of quantize() read the same stream in between.
void SearchPoints::open_samples() {
  source_.reset();
  if (options_.samples != nullptr) options_.samples->rewind();
  given_ = run::open_samples(options_, run::input_specs(onnx::read_model(options_.model)));
  source_.emplace(*given_, run::ContentOrderOptions{});
}

QuantizeOptions SearchPoints::of_format(const std::string& format) const {
  auto options = base_;
  options.format = format;
  options.config = preset_config("balanced");
  std::vector<std::string_view> given;
  config::resolve(options, given);
  return options;
}

QuantizeOptions SearchPoints::of_nodes(const std::vector<std::string>& node_formats) const {
  auto options = base_;
  options.node_formats = node_formats;
  return options;
}

void SearchPoints::note(std::string text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(std::move(text));
}

bool SearchPoints::make(SearchPoint point, const QuantizeOptions& options) {
  const auto scope = profiler_.scope("Models of the front");
  auto own = options;
  own.output = folder_ / fmt::format("{}.onnx", point.name);
  own.bench = false;
  if (own.samples != nullptr) own.samples->rewind();
  try {
    const auto result = quantize(own);
    point.bytes = result.model_bytes_after;
    inferences_ += 3 * result.samples;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input && e.kind() != ErrorKind::usage && e.kind() != ErrorKind::device) throw;
    note(fmt::format("not tried: {}: {}", point.name, e.what()));
    return false;
  }
  made_.push_back({std::move(point), own.output});
  judge(made_.back());
  if (options_.progress) options_.progress("models", made_.size(), 0);
  return true;
}

void SearchPoints::judge(MadePoint& point) {
  open_samples();
  source_->skip(source_->file_count() - judged_);
  const auto found = run::deployed_fidelity(runtime_, options_.model, point.file, *source_, judged_,
                                            run::guard_options(base_, point.file));
  inferences_ += 2 * judged_;
  point.told.sqnr_db = found.sqnr_db;
  point.told.error = std::pow(10, -found.sqnr_db / 10);
  const auto& accuracy = options_.accuracy;
  if (accuracy.metric == AccuracyMetric::command) {
    point.told.value = run::share_of_float_score(accuracy, options_.model, point.file, float_score_, options_.stop);
  } else if (accuracy.target) {
    point.told.value = run::value_of(found, accuracy.metric);
  }
}

void SearchPoints::time() {
  const auto scope = profiler_.scope("Latency");
  for (; timed_ < made_.size();) {
    const auto count = std::min(kTimedTogether, made_.size() - timed_);
    std::vector<std::filesystem::path> files;
    std::uint64_t bytes = 0;
    for (std::size_t m = timed_; m < timed_ + count; ++m) {
      files.push_back(made_[m].file);
      bytes += made_[m].told.bytes;
    }
    open_samples();
    const auto measured = run::measure_latencies(
        runtime_,
        {.float_model = options_.model,
         .source = &*source_,
         .samples = kTimedSamples,
         .threads = options_.threads,
         .run_seconds = kSecondsEach * static_cast<double>(count + 1) / 0.03,
         .needed_memory = profile::memory_now().resident + 2 * bytes,
         .memory_budget = options_.resources.memory_budget.value_or(planning::available_memory()),
         .stop = options_.stop},
        files);
    for (const auto& text : measured.notes) note(text);
    if (measured.changes.empty())
      throw resource_error(measured.notes.empty() ? "latency was not measured" : measured.notes.front(),
                           "raise --memory-budget");
    for (std::size_t m = 0; m < count; ++m) {
      const auto& change = measured.changes[m];
      if (float_seconds_ == 0) float_seconds_ = change.before.median;
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
