#include "exec/kernel_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/file.h"
#include "exec/emit.h"

namespace detent::exec {
namespace {

constexpr std::size_t kLeastRuns = 3;

// Executions end in the order of the list: what ran within one stands before it.
void subtract_body_times(std::vector<NodeTime>& executions) {
  std::vector<std::pair<double, double>> waiting;  // start and whole duration of those whose outer node is yet to come
  for (auto& execution : executions) {
    const double whole = execution.seconds;
    while (!waiting.empty() && waiting.back().first >= execution.start) {
      execution.seconds -= waiting.back().second;
      waiting.pop_back();
    }
    execution.seconds = std::max(execution.seconds, 0.0);
    waiting.emplace_back(execution.start, whole);
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Kernel> summed_up(const std::vector<NodeTime>& executions, std::size_t runs, bool fastest) {
  std::vector<Kernel> kernels;
  std::vector<std::vector<double>> times;
  std::unordered_map<std::string, std::size_t> position;
  for (const auto& execution : executions) {
    const auto [it, added] = position.try_emplace(execution.name, kernels.size());
    if (added) {
      kernels.push_back({execution.name, execution.op_type, {}, 0});
      times.emplace_back();
    }
    times[it->second].push_back(execution.seconds);
  }
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const double times_a_run = static_cast<double>(times[k].size()) / static_cast<double>(runs);
    const double one = fastest ? *std::min_element(times[k].begin(), times[k].end()) : median(std::move(times[k]));
    kernels[k].seconds = one * times_a_run;
  }
  return kernels;
}

std::unordered_set<std::string> made_values(const onnx::Model& model) {
  std::unordered_set<std::string> values;
  for (const auto& node : model.graph.nodes) values.insert(node.outputs().begin(), node.outputs().end());
  values.erase("");
  return values;
}

// Kernels of the blocked layout make values of their own, and are named after the model's.
void name_outputs(std::vector<Kernel>& kernels, const onnx::Model& optimized, const onnx::Model& model) {
  constexpr std::string_view kBlocked = "_nchwc";
  const auto known = made_values(model);
  std::unordered_map<std::string_view, const onnx::Node*> nodes;
  for (const auto& node : optimized.graph.nodes) nodes[node.name()] = &node;
  for (auto& kernel : kernels) {
    const auto node = nodes.find(kernel.name);
    if (node == nodes.end()) continue;
    for (const auto& output : node->second->outputs()) {
      if (known.contains(output)) kernel.outputs.push_back(output);
    }
    if (!kernel.outputs.empty() || !kernel.name.ends_with(kBlocked)) continue;
    auto value = kernel.name.substr(0, kernel.name.size() - kBlocked.size());
    if (known.contains(value)) kernel.outputs.push_back(std::move(value));
  }
}

}  // namespace

std::vector<Kernel> kernel_times(const Runtime& runtime, const onnx::Model& model,
                                 std::span<const std::vector<data::Array>> samples, const KernelTimesOptions& options) {
  if (samples.empty()) throw internal_error("there is no sample to time the model with");
  const TempDir directory(options.directory);
  const auto optimized = directory.path() / "optimized.onnx";
  onnx::Model named = model;
  name_nodes(named);
  const std::string where = fmt::format("model '{}'", model.path.string());
  Session session(runtime, emit(named), where,
                  {.tuning = SessionMode::deployed,
                   .threads = options.threads,
                   .stop = options.stop,
                   .is_timed = true,
                   .record = directory.path() / "times",
                   .optimized_model = optimized});
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  std::size_t runs = 0;
  while (runs < kLeastRuns || (runs < options.runs && Clock::now() < end)) {
    session.run(samples[runs % samples.size()], where);
    ++runs;
  }
  auto executions = session.end_recording_of_runs();
  subtract_body_times(executions);
  auto kernels = summed_up(executions, runs, options.fastest);
  name_outputs(kernels, onnx::read_model(optimized), named);
  return kernels;
}

}  // namespace detent::exec
