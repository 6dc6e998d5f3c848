#include "pipeline/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "calibrate/density.h"
#include "graph/index.h"
#include "profile/html_report.h"
#include "profile/roofline.h"
#include "profile/trace.h"

namespace detent::pipeline {
namespace {

using nlohmann::json;

// JSON has no infinities.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json verdict_of(const profile::Work& work, const profile::MachinePeaks& machine, std::string_view stage) {
  const auto verdict = profile::judge(work, machine, stage);
  return {{"bound", profile::bound_name(verdict.bound)}, {"share", number(verdict.share)}, {"advice", verdict.advice}};
}

profile::Work work_of(const profile::StageTime& stage, const RunReport& report) {
  profile::Work work{.seconds = stage.seconds,
                     .disk_bytes = static_cast<double>(stage.disk_read + stage.disk_written),
                     .cpu_seconds = stage.cpu_seconds};
  if (stage.name != profile::step_name(profile::Step::calibration) || !report.cost) return work;
  const auto samples = static_cast<double>(report.statistics.samples);
  work.flops = samples * static_cast<double>(report.cost->work.flops);
  work.memory_bytes = samples * static_cast<double>(report.cost->work.bytes);
  return work;
}

json stages_json(const RunReport& report, const profile::Profiler& profiler) {
  json stages = json::array();
  for (const auto& stage : profiler.stages()) {
    const auto work = work_of(stage, report);
    json entry = verdict_of(work, report.machine, stage.name);
    entry.update({{"name", stage.name},
                  {"start", stage.start},
                  {"seconds", stage.seconds},
                  {"peak_memory_bytes", stage.peak_memory},
                  {"flops", work.flops},
                  {"memory_bytes", work.memory_bytes},
                  {"disk_bytes", work.disk_bytes}});
    stages.push_back(std::move(entry));
  }
  return stages;
}

// The longest stage's verdict is the run's.
std::string verdict_text(const json& stages) {
  const json* longest = nullptr;
  for (const auto& stage : stages) {
    if (longest == nullptr || stage["seconds"] > (*longest)["seconds"]) longest = &stage;
  }
  if (longest == nullptr) return "";
  return fmt::format("{} took longest, {}-bound at {:.0f} % of the peak. {}", (*longest)["name"].get<std::string>(),
                     (*longest)["bound"].get<std::string>(),
                     100 * ((*longest)["share"].is_null() ? 0.0 : (*longest)["share"].get<double>()),
                     (*longest)["advice"].get<std::string>());
}

json timeline_json(const profile::Profiler& profiler) {
  json points = json::array();
  for (const auto& p : profiler.timeline()) {
    points.push_back({{"t", p.time},
                      {"resident", p.resident},
                      {"anonymous", p.anonymous},
                      {"disk_read", p.disk_read},
                      {"disk_written", p.disk_written},
                      {"gpu", p.gpu_memory}});
  }
  return points;
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

json tensors_json(const RunReport& report, const QuantizeResult& result) {
  json tensors = json::array();
  for (const auto& [name, summary] : report.statistics.tensors) {
    const auto params = result.activations.find(name);
    if (params == result.activations.end() || !summary.has_values()) continue;
    const auto& p = params->second;
    const auto density = calibration::density_of(summary);
    json entry{{"name", name},
               {"range", {p.range_min, p.range_max}},
               {"observed", {summary.extremes.lowest(), summary.extremes.highest()}},
               {"scale", p.scale},
               {"zero_point", p.zero_point}};
    const auto maker = report.made_by.find(name);
    if (maker != report.made_by.end()) entry["made_by"] = maker->second;
    if (!density.intervals.empty()) {
      entry["clipped_share"] = clipped_share(density, p.range_min, p.range_max);
      auto histogram = histogram_json(density);
      if (!histogram.is_null()) entry["histogram"] = std::move(histogram);
    }
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

// The prediction is that of calibration; comparing the models for this report takes more.
json plan_json(const RunReport& report, const profile::Profiler& profiler) {
  json plan = json::array();
  if (!report.cost) return plan;
  for (const auto& stage : profiler.stages()) {
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

json summary_json(const QuantizeResult& result, const profile::Profiler& profiler) {
  const auto s = profiler.summary();
  return {{"seconds", s.seconds},
          {"cpu_seconds", s.cpu_seconds},
          {"peak_memory_bytes", s.peak_memory},
          {"disk_read_bytes", s.disk_read},
          {"disk_written_bytes", s.disk_written},
          {"samples", result.samples},
          {"model_bytes_before", result.model_bytes_before},
          {"model_bytes_after", result.model_bytes_after},
          {"nodes_quantized", result.nodes_quantized},
          {"nodes_in_float", result.nodes_in_float}};
}

// The value that the runtime named one of its own nodes after: "X@raw_nchwc" and the like.
std::string value_of(std::string name) {
  for (const std::string_view suffix : {"_nchwc", "@negate", "@raw"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

void assign_times(RunReport& report) {
  std::unordered_map<std::string, LayerRecord*> by_name, by_output;
  for (auto& layer : report.layers) {
    by_name[layer.name] = &layer;
    by_output[layer.output] = &layer;
  }
  for (const auto& time : report.recording.nodes) {
    const auto named = by_name.find(time.name);
    const auto made = by_output.find(value_of(time.name));
    LayerRecord* layer = named != by_name.end() ? named->second : made != by_output.end() ? made->second : nullptr;
    // A convolution with its activation in one goes by the activation's output.
    while (layer != nullptr && time.op_type.ends_with("Conv") && layer->op_type != "Conv") {
      const auto before = by_output.find(layer->input);
      layer = before == by_output.end() ? nullptr : before->second;
    }
    if (layer != nullptr) layer->seconds += time.seconds;
  }
  LayerRecord observers{"observers (detent)", "Tap", "", "", {}, 0};
  LayerRecord layout{"changes of layout (runtime)", "Reorder", "", "", {}, 0};
  for (const auto& time : report.recording.nodes) {
    if (time.op_type == observers.op_type) observers.seconds += time.seconds;
    if (time.op_type.starts_with("Reorder")) layout.seconds += time.seconds;
  }
  for (auto& extra : {observers, layout}) {
    if (extra.seconds > 0) report.layers.push_back(extra);
  }
}

std::string report_json(const RunReport& report, const QuantizeOptions& options, const QuantizeResult& result,
                        const profile::Profiler& profiler) {
  const json stages = stages_json(report, profiler);
  json out{{"title", options.model.filename().string()},
           {"version", DETENT_VERSION},
           {"summary", summary_json(result, profiler)},
           {"verdict", verdict_text(stages)},
           {"machine",
            {{"threads", report.machine.threads},
             {"flops_per_second", report.machine.flops_per_second},
             {"memory_bytes_per_second", report.machine.memory_bytes_per_second},
             {"disk_bytes_per_second", report.machine.disk_bytes_per_second}}},
           {"stages", stages},
           {"timeline", timeline_json(profiler)},
           {"layers", layers_json(report)},
           {"tensors", tensors_json(report, result)},
           {"plan", plan_json(report, profiler)},
           {"notes", result.notes}};
  if (report.comparison) {
    for (const auto& o : report.comparison->outputs)
      out["outputs"].push_back({{"name", o.name}, {"sqnr_db", number(o.sqnr_db)}, {"cosine", number(o.cosine)}});
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

void describe_layers(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                     data::SampleSource& source, const planning::Circumstances& circumstances, RunReport& report) {
  const onnx::Model& model = prepared.model;
  const auto specs = input_specs(model);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  planning::Circumstances known = circumstances;
  if (const auto sample = source.next()) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      shapes[specs[i].name] = sample->inputs[i].shape;
      known.sample_bytes += sample->inputs[i].bytes.size();
    }
  }
  source.rewind();
  const auto types = exec::probe_values(runtime, model, shapes);
  const graph::Index index(model);
  for (const auto& node : model.graph.nodes) {
    const auto work = graph::work_of(model, index, types, node);
    report.layers.push_back({node.id(), node.op_type(), node.inputs().empty() ? "" : node.inputs().front(),
                             node.outputs().front(), work.value_or(graph::Work()), 0});
    for (const auto& output : node.outputs()) report.made_by[output] = node.label();
  }
  report.cost = planning::calibration_cost(model, types, placement.to_observe(), known);
}

void check_report_path(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path) || std::filesystem::is_empty(path)) return;
  std::string start(9, ' ');
  std::ifstream(path).read(start.data(), static_cast<std::streamsize>(start.size()));
  if (start == "<!doctype" || start == "<!DOCTYPE") return;
  throw usage_error(fmt::format("--report: '{}' is there already and is no HTML file", path.string()),
                    "choose another name, or remove it");
}

void write_reports(RunReport& report, const QuantizeOptions& options, const QuantizeResult& result,
                   const std::filesystem::path& work_dir, profile::Profiler& profiler) {
  report.machine = profile::measure_machine(static_cast<int>(thread_count(options.threads)), work_dir);
  assign_times(report);
  if (options.report) {
    AtomicFile file(*options.report);
    file.write(as_byte_span(profile::html_report(report_json(report, options, result, profiler))));
    file.commit();
  }
  if (options.trace) {
    const double session = report.collect_start + report.recording.session_seconds;
    for (const auto& node : report.recording.nodes) profiler.add_span(node.name, session + node.start, node.seconds);
    profile::write_trace(*options.trace, profiler.stages(), profiler.timeline(), profiler.spans());
  }
}

}  // namespace detent::pipeline
