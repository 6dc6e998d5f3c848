// What a run would do and take: everything that comes before the first inference.
#include "detent/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/sample.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "pipeline/collect.h"
#include "pipeline/prepare.h"
#include "plan/calibration.h"
#include "profile/machine.h"
#include "quantize/formats.h"
#include "quantize/placement.h"
#include "quantize/ranges.h"

namespace detent {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

// Shapes of the inputs in the first sample, by input name.
std::map<std::string, std::vector<std::int64_t>> first_shapes(data::SampleSource& source,
                                                              const std::vector<data::InputSpec>& specs,
                                                              std::uint64_t& bytes) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto sample = source.next();
  if (!sample) return shapes;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    shapes[specs[i].name] = sample->inputs[i].shape;
    bytes += sample->inputs[i].bytes.size();
  }
  source.rewind();
  return shapes;
}

// Integers of the constants that get quantized, the others as they are, and the graph with its pairs.
std::uint64_t output_bytes(const onnx::Model& model, const quantization::Placement& placement,
                           const QuantConfig& config) {
  constexpr std::uint64_t kPair = 400;  // two nodes, a scale and a zero point
  std::uint64_t bytes = kPair * placement.marks.size();
  std::map<std::string, std::uint64_t> stored;
  for (const auto& tensor : model.graph.initializers) stored[tensor.name] = tensor.data.size();
  for (const auto& mark : placement.marks) {
    if (!mark.is_constant) continue;
    const auto type = mark.is_weight ? config.weight_type : config.activation_type;
    stored[mark.value] /= 32 / static_cast<std::uint64_t>(onnx::bits_of(quantization::data_type(type)));
  }
  for (const auto& [name, size] : stored) bytes += size;
  for (const auto& node : model.graph.nodes) bytes += 64 + node.name().size();
  return bytes;
}

void count_nodes(const quantization::Placement& placement, Plan& plan) {
  for (const bool selected : placement.selected) ++(selected ? plan.nodes_quantized : plan.nodes_in_float);
}

// A guess: the share of the machine's peak that convolutions and products of middling size reach, and a nanosecond for
// each observed element and thread.
double seconds_for(const Plan& plan, const profile::MachinePeaks& machine) {
  constexpr double kReached = 0.45;
  constexpr double kObserved = 1e-9;
  const double run = static_cast<double>(plan.flops) / (kReached * machine.flops_per_second) +
                     kObserved * static_cast<double>(plan.observed_elements) / machine.threads;
  return run * static_cast<double>(plan.files);
}

void add_cost(const planning::CalibrationCost& cost, Plan& plan) {
  plan.macs = cost.work.macs;
  plan.flops = cost.work.flops;
  plan.observed_elements = cost.observed_elements;
  for (const auto& part : cost.memory) {
    if (part.bytes > 0) plan.memory.push_back({part.what, part.bytes});
  }
  plan.peak_memory = cost.peak_memory();
}

}  // namespace

Plan plan(const QuantizeOptions& options) {
  const quantization::RangeOptions ranges{options.method, options.overrides, 1};
  quantization::check_format(options.config);
  quantization::check_method(options.config, ranges);
  Plan result;
  const TempDir work(options.resources.work_dir.value_or(""));
  profile::Profiler silent;
  auto original = onnx::read_model(options.model);
  const exec::Runtime runtime(options.runtime);
  const auto prepared =
      pipeline::prepare(std::move(original), quantization::needed_opset(options.config), runtime, work.path(), silent);
  const auto placement = quantization::place(prepared.model, prepared.types, options.config);
  count_nodes(placement, result);
  result.tensors_observed = placement.to_observe().size();
  result.work_bytes = profile::directory_size(work.path());
  result.output_bytes = output_bytes(prepared.model, placement, options.config);
  result.notes = prepared.notes;

  const auto specs = pipeline::input_specs(prepared.model);
  std::map<std::string, std::vector<std::int64_t>> shapes;
  planning::Circumstances circumstances{result.tensors_observed, quantization::needs_histograms(ranges),
                                        pipeline::thread_count(options.threads),
                                        static_cast<std::size_t>(options.workers), 0};
  if (options.calibration_data) {
    const auto source = data::open_samples(*options.calibration_data, specs, {options.max_samples, options.batch_size});
    result.files = source->file_count();
    if (options.max_samples > 0) result.files = std::min<std::size_t>(result.files, options.max_samples);
    shapes = first_shapes(*source, specs, circumstances.sample_bytes);
  }
  for (const auto& [name, shape] : shapes) result.inputs.emplace_back(name, shape_text(shape));
  const auto types = shapes.empty() ? prepared.types : exec::probe_values(runtime, prepared.model, shapes);
  const auto cost = planning::calibration_cost(prepared.model, types, placement.to_observe(), circumstances);
  if (!cost) {
    result.notes.emplace_back(shapes.empty()
                                  ? "memory and work depend on dynamic axes: give --calibration-data to know them"
                                  : "memory and work are not known: some shapes depend on values");
    return result;
  }
  add_cost(*cost, result);
  const auto machine = profile::measure_machine(static_cast<int>(circumstances.threads), work.path());
  if (machine.flops_per_second > 0) result.calibration_seconds = seconds_for(result, machine);
  return result;
}

}  // namespace detent
