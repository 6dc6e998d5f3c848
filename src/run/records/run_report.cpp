#include "run/records/run_report.h"

#include <fmt/format.h>

#include <fstream>
#include <unordered_map>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/parallel.h"
#include "graph/index.h"
#include "profile/html_report.h"
#include "profile/trace.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::run {
namespace {

// The value that the runtime named one of its own nodes after: "X@raw_nchwc" and the like.
std::string value_of(std::string name) {
  for (const std::string_view suffix : {"_nchwc", "@negate", "@raw"}) {
    if (name.ends_with(suffix)) name.erase(name.size() - suffix.size());
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

void check_html_path(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return;
  if (!std::filesystem::is_regular_file(path, failed))
    throw usage_error(fmt::format("--report: '{}' is not a regular file", path.string()), "choose another name");
  if (std::filesystem::is_empty(path, failed)) return;
  std::string start(9, ' ');
  std::ifstream(path).read(start.data(), static_cast<std::streamsize>(start.size()));
  if (start == "<!doctype" || start == "<!DOCTYPE") return;
  throw usage_error(fmt::format("--report: '{}' exists and is not an HTML file", path.string()),
                    "choose another name, or remove it");
}

}  // namespace

void describe_layers(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                     data::SampleSource& source, const planning::Circumstances& circumstances, RunReport& report) {
  const onnx::Model& model = prepared.model;
  const auto first = first_sample(source, input_specs(model));
  planning::Circumstances known = circumstances;
  known.sample_bytes = first.bytes;
  const auto types = exec::infer_value_types(runtime, model, first.shapes);
  const graph::Index index(model);
  for (const auto& node : model.graph.nodes) {
    const auto work = graph::work_of(model, index, types, node);
    report.layers.push_back({node.id(), node.op_type(), node.inputs().empty() ? "" : node.inputs().front(),
                             node.outputs().front(), work.value_or(graph::Work()), 0});
    for (const auto& output : node.outputs()) report.made_by[output] = node.label();
  }
  report.cost = planning::calibration_cost(model, types, placement.to_observe(), known);
}

void check_report_paths(const std::optional<std::filesystem::path>& html,
                        const std::optional<std::filesystem::path>& trace) {
  if (trace) check_replaceable(*trace);
  if (html) check_replaceable(*html);
  if (trace) profile::check_trace_path(*trace);
  if (html) check_html_path(*html);
}

ReportRequest request_of(const QuantizeOptions& options, const QuantizeResult& result,
                         const std::filesystem::path& work_dir) {
  return {options.report,  options.trace, options.model,
          options.command, result.notes,  &result,
          options.threads, work_dir,      options.resources.memory_budget};
}

void write_reports(RunReport& report, const ReportRequest& request, RunProfiler& profiler) {
  if (!request.html && !request.trace) return;
  const auto resident = profile::memory_now().resident;
  const auto budget = request.memory_budget.value_or(std::numeric_limits<std::uint64_t>::max());
  constexpr std::uint64_t kBeside = std::uint64_t{16} << 20;  // what threads and the disk's buffers take meanwhile
  report.machine = profile::measure_machine(static_cast<int>(thread_count(request.threads)), request.work_dir,
                                            budget - std::min(budget, resident + kBeside));
  if (report.device)
    report.device->peaks = profile::measure_cuda(report.device->config.cuda.front(), report.device->config.precision);
  assign_times(report);
  if (request.html) {
    AtomicFile file(*request.html);
    file.write(as_byte_span(profile::html_report(report_json(report, request, profiler))));
    file.commit();
  }
  if (request.trace) {
    auto& spans = profiler.profiler();
    const double session = report.collect_start + report.recording.session_seconds;
    for (const auto& node : report.recording.nodes) spans.add_span(node.name, session + node.start, node.seconds);
    auto all = spans.spans();
    const auto on_devices = spans.device().spans();
    all.insert(all.end(), on_devices.begin(), on_devices.end());
    profile::write_trace(*request.trace, spans.stages(), spans.timeline(), all);
  }
}

}  // namespace detent::run
