#include "run/records/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "base/text.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "profile/report.h"
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
    throw usage_error(fmt::format("report: '{}' is not a regular file", path.string()), "choose another name");
  if (std::filesystem::is_empty(path, failed)) return;
  std::string start(9, ' ');
  std::ifstream(path).read(start.data(), static_cast<std::streamsize>(start.size()));
  if (start == "<!doctype" || start == "<!DOCTYPE") return;
  throw usage_error(fmt::format("report: '{}' exists and is not an HTML file", path.string()),
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

void write_reports(RunReport& report, const ReportRequest& request, RunProfiler& profiler) {
  const auto& [html, trace] = std::tie(request.options.report, request.options.trace);
  if (!html && !trace) return;
  const auto resident = profile::memory_now().resident;
  const auto budget = request.options.resources.memory_budget.value_or(std::numeric_limits<std::uint64_t>::max());
  constexpr std::uint64_t kBeside = std::uint64_t{16} << 20;  // what threads and the disk's buffers take meanwhile
  report.machine = profile::measure_machine(static_cast<int>(thread_count(request.options.threads)), request.work_dir,
                                            budget - std::min(budget, resident + kBeside));
  if (report.device)
    report.device->peaks = profile::measure_cuda(report.device->config.cuda.front(), report.device->config.precision);
  assign_times(report);
  if (html) {
    AtomicFile file(*html);
    file.write(as_byte_span(profile::html_report(report_json(report, request, profiler))));
    file.commit();
  }
  if (trace) {
    auto& spans = profiler.profiler();
    const double session = report.collect_start + report.recording.session_seconds;
    for (const auto& node : report.recording.nodes) spans.add_span(node.name, session + node.start, node.seconds);
    auto all = spans.spans();
    const auto on_devices = spans.device().spans();
    all.insert(all.end(), on_devices.begin(), on_devices.end());
    profile::write_trace(*trace, spans.stages(), spans.timeline(), all);
  }
}

RunProfiler::RunProfiler(Profiler* callers, const std::optional<std::filesystem::path>& yaml)
    : profiler_(callers == nullptr ? nullptr : &callers->impl()) {
  if (profiler_ != nullptr && yaml)
    throw usage_error("a run takes a path for its profile or a profiler, not both", "give the path to the profiler");
  if (profiler_ == nullptr) profiler_ = &own_.emplace(yaml);
  first_ = profiler_->stages().size();
  profiler_->device().begin_run();
}

void RunProfiler::finish() {
  if (own_) own_->finish();
}

std::vector<profile::StageTime> RunProfiler::stages() const {
  auto stages = profiler_->stages();
  stages.erase(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(first_));
  return stages;
}

std::vector<StageReport> RunProfiler::stage_reports() const {
  std::vector<StageReport> reports;
  for (const auto& stage : stages()) reports.push_back({stage.name, stage.seconds, stage.peak_memory});
  return reports;
}

namespace {

// Bodies stay as they are.
std::size_t products_in_bodies(const onnx::Model& model, const onnx::Node& node) {
  std::size_t count = 0;
  for (const auto& body : graph::read_bodies(model, node)) {
    for (const auto& inner : body.nodes) {
      if (graph::is_product(inner)) ++count;
      count += products_in_bodies(model, inner);
    }
  }
  return count;
}

}  // namespace

using quantization::NodeCounts;

void record(const NodeCounts& counts, QuantizeResult& result) {
  result.nodes_quantized = counts.quantized;
  result.nodes_in_float = counts.in_float;
  result.notes.insert(result.notes.end(), counts.notes.begin(), counts.notes.end());
}

NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement,
                       const std::function<bool(const std::string&)>& has_integers) {
  NodeCounts counts;
  std::unordered_set<std::size_t> fused;
  for (const auto& activation : placement.fused) fused.insert(activation.node);
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (const std::size_t inside = products_in_bodies(model, node); inside > 0) {
      counts.in_float += inside;
      counts.notes.push_back(fmt::format("{}: {} in its bodies left in float; shares do not count them", node.label(),
                                         count_with_noun(inside, "layer")));
    }
    if (!placement.selected[n]) {
      if (graph::is_product(node)) ++counts.in_float;
      continue;
    }
    const bool any = fused.contains(n) || std::any_of(node.inputs().begin(), node.inputs().end(), has_integers);
    ++(any ? counts.quantized : counts.in_float);
  }
  return counts;
}

void count_nodes(const onnx::Model& model, quantization::Placement& placement) {
  std::unordered_set<std::string> marked;
  for (const auto& mark : placement.marks) marked.insert(mark.value);
  auto counts = count_nodes(model, placement, [&](const auto& value) { return marked.contains(value); });
  counts.notes.insert(counts.notes.begin(), placement.notes.begin(), placement.notes.end());
  static_cast<NodeCounts&>(placement) = std::move(counts);
}

void record_assignment(const onnx::Model& model, const quantization::Assignment& assignment, QuantizeResult& result) {
  const auto& placement = assignment.placement;
  record(count_nodes(model, placement, [&](const auto& value) { return assignment.values.contains(value); }), result);
  for (const auto& mark : placement.marks) {
    const auto found = assignment.values.find(mark.value);
    if (mark.is_constant || found == assignment.values.end()) continue;
    const auto& [scale, zero_point] = found->second.slices.front();
    const auto& range = found->second.range;
    result.activations[mark.value] = {scale, zero_point, range.min, range.max, found->second.origin};
  }
}

std::vector<std::string> notes_for_this_machine(const QuantConfig& config) {
  const bool symmetric = config.per_channel || config.weight_symmetric.value_or(true);
  const bool in_pairs = config.weight_range == WeightRange::pairs && symmetric;
  if (sums_8_bit_products_exactly() || config.weight_range == WeightRange::reduced || in_pairs) return {};
  if (config.weight_type != QuantType::int8) return {};  // int8 activations are turned into uint8 inside the runtime
  return {
      "this CPU has no VNNI: ONNX Runtime's products with int8 weights saturate on it and lose accuracy; for such CPUs "
      "give --set weight-range=pairs"};
}

}  // namespace detent::run
