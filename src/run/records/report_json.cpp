// GPU work of a run, for the HTML report.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "base/text.h"
#include "calibration/methods.h"
#include "config/results.h"
#include "profile/report.h"
#include "profile/trace.h"
#include "run/comparison/outcome.h"
#include "run/files/run_directory.h"
#include "run/records/run_report.h"

namespace detent::run {

namespace {

using nlohmann::json;
using profile::DeviceLane;

constexpr std::string_view kObservers = "observers";  // as the plugin calls them

// JSON has no infinities.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json verdict_of(const profile::Work& work, const profile::MachinePeaks& peaks, std::string_view stage) {
  const auto verdict = profile::find_bottleneck(work, peaks, stage);
  return {{"bound", profile::bound_name(verdict.bound)}, {"share", number(verdict.share)}, {"advice", verdict.advice}};
}

profile::MachinePeaks peaks_of(const RunReport& report) {
  profile::MachinePeaks peaks = report.machine;
  peaks.flops_per_second = report.device->peaks.flops_per_second;
  peaks.memory_bytes_per_second = report.device->peaks.memory_bytes_per_second;
  peaks.bus_bytes_per_second = report.device->peaks.bus_bytes_per_second;
  return peaks;
}

double rate_of(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

profile::DeviceTotal observers_of(const profile::DeviceActivity& activity) {
  for (const auto& total : activity.totals()) {
    if (total.lane == DeviceLane::compute && total.what == kObservers) return total;
  }
  return {};
}

double observers_rate(const profile::DeviceTotal& observers) {
  return rate_of(static_cast<double>(observers.amount.bytes), observers.seconds);
}

profile::Work work_on_device(const profile::DeviceTotal& total) {
  profile::Work work{.seconds = total.seconds, .flops = total.amount.flops};
  const auto bytes = static_cast<double>(total.amount.bytes);
  if (total.lane == DeviceLane::compute) work.memory_bytes = bytes;
  if (total.lane == DeviceLane::copy) work.bus_bytes = bytes;
  if (total.lane == DeviceLane::read) work.disk_bytes = bytes;
  return work;
}

json work_json(const RunReport& report, const profile::DeviceActivity& activity) {
  json all = json::array();
  for (const auto& total : activity.totals()) {
    json entry{{"device", total.device},
               {"lane", profile::lane_name(total.lane)},
               {"name", total.what},
               {"count", total.count},
               {"seconds", number(total.seconds)},
               {"bytes", total.amount.bytes},
               {"flops", number(total.amount.flops)}};
    if (total.lane != DeviceLane::gather) {
      const auto verdict = verdict_of(work_on_device(total), peaks_of(report), profile::kCalibrationOnGpu);
      entry["bound"] = verdict["bound"];
      entry["share"] = verdict["share"];
    }
    all.push_back(std::move(entry));
  }
  return all;
}

json devices_json(const profile::DeviceActivity& activity) {
  json all = json::array();
  for (const auto& use : activity.devices()) {
    all.push_back({{"number", use.number},
                   {"name", use.name},
                   {"memory_budget_bytes", use.memory_budget},
                   {"memory_foretold_bytes", use.memory_foretold},
                   {"memory_peak_bytes", use.memory_peak}});
    if (!use.storage.empty()) all.back()["storage"] = use.storage;
  }
  return all;
}

// Of the devices in this stage, per device.
profile::Work tuning_work(const profile::StageTime& stage, const profile::DeviceActivity& activity) {
  profile::Work all{.seconds = stage.seconds, .disk_bytes = static_cast<double>(stage.disk_read + stage.disk_written)};
  const auto devices = static_cast<double>(std::max<std::size_t>(activity.devices().size(), 1));
  for (const auto& total : activity.totals()) {
    if (total.what == kObservers) continue;
    const profile::Work work = work_on_device(total);
    all.flops += work.flops / devices;
    all.memory_bytes += work.memory_bytes / devices;
    all.bus_bytes += work.bus_bytes / devices;
  }
  return all;
}

json device_json(const RunReport& report, const profile::DeviceActivity& activity) {
  const auto& device = *report.device;
  const auto& peaks = device.peaks;
  json out{{"number", device.config.cuda.front()},
           {"flops_per_second", number(peaks.flops_per_second)},
           {"memory_bytes_per_second", number(peaks.memory_bytes_per_second)},
           {"bus_bytes_per_second", number(peaks.bus_bytes_per_second)},
           {"devices", devices_json(activity)},
           {"work", work_json(report, activity)}};
  if (!device.calibration) return out;
  const auto observers = observers_of(activity);
  out.update({{"observers_seconds", number(observers.seconds)},
              {"observed_bytes", device.calibration->observing.bytes},
              {"observers_bytes_per_second", number(observers_rate(observers))},
              {"bytes_to_device", device.calibration->input_bytes},
              {"bytes_to_host", device.calibration->observing.bytes_to_host},
              {"nodes_on_host", device.calibration->nodes}});
  return out;
}

std::string observers_text(const RunReport& report, const profile::DeviceActivity& activity) {
  const auto& observing = report.device->calibration->observing;
  const double rate = observers_rate(observers_of(activity)), peak = report.device->peaks.memory_bytes_per_second;
  const std::string share =
      peak > 0 ? fmt::format(" ({:.0f} % of a copy's {:.0f})", 100 * rate / peak, peak / 1e9) : "";
  return fmt::format(
      "the observers read {} on the GPU at {:.0f} GB/s{}, and {} of their counts were copied to the host",
      format_size(observing.bytes), rate / 1e9, share, format_size(observing.bytes_to_host));
}

bool is_on_device(const profile::StageTime& stage, const RunReport& report) {
  return report.device && report.device->calibration && stage.name == profile::step_name(profile::Step::calibration);
}

profile::Work work_of_stage(const profile::StageTime& stage, const RunReport& report) {
  profile::Work work{.seconds = stage.seconds,
                     .disk_bytes = static_cast<double>(stage.disk_read + stage.disk_written),
                     .cpu_seconds = stage.cpu_seconds,
                     .pressure_seconds = stage.pressure_seconds};
  if (stage.name != profile::step_name(profile::Step::calibration) || !report.cost) return work;
  const auto samples = static_cast<double>(report.samples_run);
  work.flops = samples * static_cast<double>(report.cost->work.flops);
  work.memory_bytes = samples * static_cast<double>(report.cost->work.bytes);
  if (is_on_device(stage, report)) {
    const auto& use = *report.device->calibration;
    work.memory_bytes += static_cast<double>(use.observing.bytes);
    work.bus_bytes = static_cast<double>(use.input_bytes + use.observing.bytes_to_host);
    work.cpu_seconds = 0;  // the host mostly waits, busily
  }
  return work;
}

bool tunes_on_device(const profile::StageTime& stage, const RunReport& report) {
  return report.device && stage.name == profile::step_name(profile::Step::fast_finetune);
}

json stages_json(const RunReport& report, const std::vector<profile::StageTime>& times,
                 const profile::DeviceActivity& activity) {
  json stages = json::array();
  for (const auto& stage : times) {
    const bool tunes = tunes_on_device(stage, report), there = tunes || is_on_device(stage, report);
    const auto work = tunes ? tuning_work(stage, activity) : work_of_stage(stage, report);
    json entry = there ? verdict_of(work, peaks_of(report), tunes ? profile::kTuningOnGpu : profile::kCalibrationOnGpu)
                       : verdict_of(work, report.machine, stage.name);
    entry.update({{"name", stage.name},
                  {"start", stage.start},
                  {"seconds", stage.seconds},
                  {"peak_memory_bytes", stage.peak_memory},
                  {"pressure_seconds", stage.pressure_seconds},
                  {"flops", there ? 0 : work.flops},
                  {"memory_bytes", there ? 0 : work.memory_bytes},
                  {"disk_bytes", work.disk_bytes}});
    stages.push_back(std::move(entry));
  }
  return stages;
}

// The longest stage's verdict is the run's; the comparison is there for the report only.
std::string verdict_text(const json& stages) {
  const json* longest = nullptr;
  for (const auto& stage : stages) {
    if (stage["name"] == kComparisonStage) continue;
    if (longest == nullptr || stage["seconds"] > (*longest)["seconds"]) longest = &stage;
  }
  if (longest == nullptr) return "";
  if ((*longest)["bound"] == profile::bound_name(profile::Bottleneck::Bound::contention))
    return fmt::format("{} took longest. {}", (*longest)["name"].get<std::string>(),
                       (*longest)["advice"].get<std::string>());
  return fmt::format("{} took longest, {}-bound at {:.0f} % of the peak. {}", (*longest)["name"].get<std::string>(),
                     (*longest)["bound"].get<std::string>(),
                     100 * ((*longest)["share"].is_null() ? 0.0 : (*longest)["share"].get<double>()),
                     (*longest)["advice"].get<std::string>());
}

json layers_json(const RunReport& report) {
  std::unordered_map<std::string, const Fidelity*> errors;
  if (report.comparison) {
    for (const auto& layer : report.comparison->layers) errors[layer.name] = &layer;
  }
  json layers = json::array();
  for (const auto& layer : report.layers) {
    json entry{{"name", layer.name},        {"op_type", layer.op_type},         {"seconds", layer.seconds},
               {"flops", layer.work.flops}, {"memory_bytes", layer.work.bytes}, {"macs", layer.work.macs}};
    if (layer.seconds > 0) {
      const profile::Work work{.seconds = layer.seconds,
                               .flops = static_cast<double>(layer.work.flops),
                               .memory_bytes = static_cast<double>(layer.work.bytes)};
      const auto verdict = verdict_of(work, report.machine, "");
      entry["bound"] = verdict["bound"];
      entry["share"] = verdict["share"];
    }
    const auto error = errors.find(layer.output);
    if (error != errors.end()) {
      entry["sqnr_db"] = number(error->second->sqnr_db);
      entry["cosine"] = number(error->second->cosine);
      if (!error->second->reason.empty()) entry["reason"] = error->second->reason;
      if (!error->second->suggestion.empty()) entry["suggestion"] = error->second->suggestion;
    }
    layers.push_back(std::move(entry));
  }
  return layers;
}

// Counts in equal bins over all values, and the share of values beyond the range.
json histogram_json(const calibration::Density& density) {
  constexpr std::size_t kBins = 120;
  const double width = (density.max - density.min) / kBins;
  if (!(width > 0) || !std::isfinite(width)) return nullptr;
  std::vector<double> counts(kBins, 0.0), edges;
  for (std::size_t b = 0; b <= kBins; ++b) edges.push_back(density.min + width * static_cast<double>(b));
  const auto bin_of = [&](double x) {
    return std::min(static_cast<std::size_t>(std::max(0.0, (x - density.min) / width)), kBins - 1);
  };
  for (const auto& i : density.intervals) {
    const std::size_t first = bin_of(i.low);
    const std::size_t last = bin_of(i.high);
    for (std::size_t b = first; b <= last; ++b) {
      const double overlap = std::min(i.high, edges[b + 1]) - std::max(i.low, edges[b]);
      counts[b] += first == last ? i.count : i.per_width * std::max(overlap, 0.0);
    }
  }
  return {{"edges", edges}, {"counts", counts}};
}

double clipped_share(const calibration::Density& density, double min, double max) {
  double clipped = 0;
  for (const auto& i : density.intervals) {
    const double mid = 0.5 * (i.low + i.high);
    if (mid < min || mid > max) clipped += i.count;
  }
  return density.total > 0 ? clipped / density.total : 0;
}

// What was seen, and of a quantized model what came of it.
json tensors_json(const RunReport& report, const QuantizeResult* quantized) {
  json tensors = json::array();
  for (const auto& [name, summary] : report.statistics.tensors) {
    const TensorParams* params = nullptr;
    if (quantized != nullptr) {
      const auto found = quantized->activations.find(name);
      if (found == quantized->activations.end()) continue;
      params = &found->second;
    }
    if (!summary.has_values()) continue;
    const auto density = calibration::density_of(summary);
    json entry{{"name", name}, {"observed", {summary.extremes.lowest(), summary.extremes.highest()}}};
    const auto maker = report.made_by.find(name);
    if (maker != report.made_by.end()) entry["made_by"] = maker->second;
    if (params != nullptr) {
      entry.update({{"method", params->method},
                    {"range", {params->range_min, params->range_max}},
                    {"scale", params->scale},
                    {"zero_point", params->zero_point}});
    }
    if (!density.intervals.empty()) {
      if (params != nullptr) entry["clipped_share"] = clipped_share(density, params->range_min, params->range_max);
      auto histogram = histogram_json(density);
      if (!histogram.is_null()) entry["histogram"] = std::move(histogram);
    }
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

// From the first moment in which devices held memory to the last.
double seconds_of_devices(const std::vector<profile::TimelinePoint>& moments) {
  double first = -1, last = -1;
  for (const auto& moment : moments) {
    if (moment.device_memory == 0) continue;
    if (first < 0) first = moment.time;
    last = moment.time;
  }
  return last - first;
}

// The prediction is that of calibration; comparing the models for this report takes more.
json plan_json(const RunReport& report, const std::vector<profile::StageTime>& stages,
               const profile::DeviceActivity& activity) {
  json plan = json::array();
  for (const auto& use : activity.devices()) {
    if (use.memory_foretold == 0) continue;
    plan.push_back({{"what", fmt::format("memory of cuda:{}, scratch of libraries included", use.number)},
                    {"unit", "bytes"},
                    {"predicted", use.memory_foretold},
                    {"measured", use.memory_peak}});
  }
  if (!report.cost) return plan;
  for (const auto& stage : stages) {
    if (stage.name != profile::step_name(profile::Step::calibration)) continue;
    plan.push_back({{"what", "peak memory of calibration"},
                    {"unit", "bytes"},
                    {"predicted", report.cost->peak_memory()},
                    {"measured", stage.peak_memory}});
  }
  for (const auto& part : report.cost->memory) {
    if (part.bytes > 0) plan.push_back({{"what", "of it: " + part.what}, {"unit", "bytes"}, {"predicted", part.bytes}});
  }
  return plan;
}

json summary_json(const RunReport& report, const QuantizeResult* quantized, const profile::Profiler& profiler) {
  const auto s = profiler.summary();
  json summary{{"seconds", s.seconds},
               {"cpu_seconds", s.cpu_seconds},
               {"peak_memory_bytes", profiler.peak_memory()},
               {"disk_read_bytes", s.disk_read},
               {"disk_written_bytes", s.disk_written},
               {"samples", report.statistics.samples}};
  if (quantized == nullptr) return summary;
  summary.update({{"model_bytes_before", quantized->model_bytes_before},
                  {"model_bytes_after", quantized->model_bytes_after},
                  {"nodes_quantized", quantized->nodes_quantized},
                  {"nodes_in_float", quantized->nodes_in_float}});
  if (quantized->latency) summary["latency"] = config::result_json(*quantized->latency);
  return summary;
}

json kept_json(const QuantizeResult& quantized) {
  json kept = json::array();
  for (const auto& node : kept_nodes(quantized)) {
    kept.push_back({{"node", node.node}, {"why", node.why}});
    if (node.measured == nullptr) continue;
    kept.back()["error_share"] = node.measured->error_share;
    kept.back()["macs_share"] = node.measured->macs_share;
  }
  return kept;
}

// What was measured, and what was done for it; values alone are left out, of which there may be very many.
json accuracy_json(const AccuracyResult& a) {
  auto out = config::result_json(a);
  if (a.worst_channels) out["worst_channels"]["name"] = channel_group_text(*a.worst_channels);
  out.erase("sensitivities");
  return out;
}

}  // namespace

std::string report_json(const RunReport& report, const ReportRequest& request, const RunProfiler& profiler) {
  const auto times = profiler.stages();
  const json stages = stages_json(report, times, profiler.profiler().device());
  json out{{"title", request.options.model.filename().string()},
           {"version", DETENT_VERSION},
           {"date", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))},
           {"model_fingerprint", fingerprint_of(onnx::read_model(request.options.model)).text()},
           {"command", request.options.command},
           {"summary", summary_json(report, request.quantized, profiler.profiler())},
           {"verdict", verdict_text(stages)},
           {"machine",
            {{"threads", report.machine.threads},
             {"flops_per_second", report.machine.flops_per_second},
             {"memory_bytes_per_second", report.machine.memory_bytes_per_second},
             {"disk_bytes_per_second", report.machine.disk_bytes_per_second}}},
           {"stages", stages},
           {"layers", layers_json(report)},
           {"tensors", tensors_json(report, request.quantized)},
           {"plan", plan_json(report, times, profiler.profiler().device())},
           {"notes", request.notes}};
  if (report.device) {
    const auto& activity = profiler.profiler().device();
    out["device"] = device_json(report, activity);
    out["device"]["seconds_in_use"] = seconds_of_devices(profiler.profiler().timeline());
    if (report.device->calibration) out["notes"].push_back(observers_text(report, activity));
  }
  if (report.comparison) {
    out["compared_samples"] = report.comparison->samples;
    for (const auto& o : report.comparison->outputs)
      out["outputs"].push_back({{"name", o.name}, {"sqnr_db", number(o.sqnr_db)}, {"cosine", number(o.cosine)}});
  }
  if (request.quantized != nullptr) {
    out["outcome"] = config::result_json(outcome_of(*request.quantized));
    out["kept"] = kept_json(*request.quantized);
    if (request.quantized->accuracy) out["accuracy"] = accuracy_json(*request.quantized->accuracy);
    out["tuned"] = config::result_json(request.quantized->layers);
  }
  return json_text(out);
}

}  // namespace detent::run
