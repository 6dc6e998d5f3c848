#include "pipeline/blocks/weight_sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "data/floats.h"
#include "data/tap.h"
#include "exec/sweep.h"
#include "onnx/half.h"
#include "planning/parts.h"
#include "quantization/blocks/block_stream.h"
#include "remedies/trial_model.h"
#include "run/comparison/pairing.h"
#include "run/files/outputs.h"
#include "run/model/kv_cache.h"

namespace detent::pipeline {
namespace {

using quantization::BlockTensor;

constexpr std::int64_t kStripeValues = std::int64_t{1} << 22;

// store(i, value) takes element i of the tensor.
template <class Store>
void round_to_nearest(const onnx::Tensor& tensor, const BlockTensor& shape, const Store& store) {
  const auto rows = shape.rows, stripe = std::max<std::int64_t>(1, kStripeValues / rows);
  for (std::int64_t first = 0; first < shape.columns; first += stripe) {
    const auto last = std::min(first + stripe, shape.columns);
    std::vector<float> columns(static_cast<std::size_t>((last - first) * rows));
    quantization::read_columns(tensor, shape, first, last, columns);
    quantization::dequantize(quantization::nearest(columns, rows, shape.format), columns);
    for (std::int64_t k = 0; k < rows; ++k) {
      for (std::int64_t n = first; n < last; ++n) {
        store(static_cast<std::size_t>(shape.by_columns ? n * rows + k : k * shape.columns + n),
              columns[static_cast<std::size_t>((n - first) * rows + k)]);
      }
    }
  }
}

void round_to_nearest(const onnx::Tensor& tensor, const BlockTensor& shape, std::span<std::byte> passed_on) {
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(passed_on.data() + i * sizeof(value), &value, sizeof(value));
  };
  switch (tensor.type) {
    case onnx::DataType::float32: return round_to_nearest(tensor, shape, put);
    case onnx::DataType::float16:
      return round_to_nearest(tensor, shape, [&](std::size_t i, float v) { put(i, onnx::to_float16(v)); });
    case onnx::DataType::bfloat16:
      return round_to_nearest(tensor, shape, [&](std::size_t i, float v) { put(i, onnx::to_bfloat16(v)); });
    default: throw internal_error("a weight in blocks is no float");
  }
}

// Rounds the weights that are switched on, where they come into the graph.
class WeightRounder final : public data::TapReceiver {
 public:
  WeightRounder(const onnx::Model& model, const quantization::BlockPlacement& placement,
                const std::vector<std::string>& taps)
      : model_(model), placement_(placement), tensors_(taps.size()) {
    std::map<std::string, std::size_t> tap_of;
    for (std::size_t i = 0; i < taps.size(); ++i) tap_of[taps[i]] = i;
    for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
      const auto found = tap_of.find(model.graph.initializers[placement.tensors[t].initializer].name);
      if (found != tap_of.end()) tensors_[found->second].push_back(t);
    }
  }

  void switch_on(std::vector<std::size_t> tensors) { on_ = {tensors.begin(), tensors.end()}; }

  void receive(std::size_t tap, const data::TensorView& view, const data::ParallelFor&) override {
    for (const auto t : tensors_[tap]) {
      if (!on_.contains(t)) continue;
      const auto& shape = placement_.tensors[t];
      round_to_nearest(model_.graph.initializers[shape.initializer], shape, view.passed_on);
      return;
    }
  }

 private:
  const onnx::Model& model_;
  const quantization::BlockPlacement& placement_;
  std::vector<std::vector<std::size_t>> tensors_;  // by tap
  std::set<std::size_t> on_;
};

std::vector<std::string> taps_of(const onnx::Model& model, const quantization::BlockPlacement& placement,
                                 std::span<const std::vector<std::size_t>> groups) {
  std::set<std::string> names;
  for (const auto& group : groups) {
    for (const auto t : group) names.insert(model.graph.initializers[placement.tensors[t].initializer].name);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> outputs_of(const onnx::Model& model, const graph::ValueTypes& types) {
  const auto all = remedies::judged_values(model, types);
  std::vector<std::string> others;
  std::remove_copy_if(all.begin(), all.end(), std::back_inserter(others), run::is_cache_output);
  return others.empty() ? all : others;
}

}  // namespace

std::vector<double> output_errors(const run::Context& context, const onnx::Model& model, const graph::ValueTypes& types,
                                  const quantization::BlockPlacement& placement,
                                  std::span<const std::vector<std::size_t>> groups, data::SampleSource& source,
                                  std::size_t samples) {
  const auto outputs = outputs_of(model, types);
  exec::BranchOptions options;
  options.session = {.tuning = exec::SessionMode::lean,
                     .threads = context.threads,
                     .stop = context.stop,
                     .edits = true,
                     .place = context.place};
  options.taps = taps_of(model, placement, groups);
  exec::Branch branch(context.runtime, model, types, {}, nullptr, options);
  auto stage = branch.load(0, fmt::format("model '{}'", model.path.string()), outputs);
  WeightRounder rounder(model, placement, stage.taps());
  std::vector<std::vector<run::PairSums>> sums(groups.size(), std::vector<run::PairSums>(outputs.size()));
  source.rewind();
  for (std::size_t s = 0; s < samples; ++s) {
    const auto sample = source.next();
    if (!sample) break;
    rounder.switch_on({});
    const auto exact = stage.run(s, sample->inputs, sample->origin, &rounder);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      rounder.switch_on(groups[g]);
      const auto found = stage.run(s, sample->inputs, sample->origin, &rounder);
      for (std::size_t i = 0; i < outputs.size(); ++i) sums[g][i].add(exact[i], found[i]);
      if (context.progress) context.progress("sensitivity", s * groups.size() + g + 1, samples * groups.size());
    }
  }
  std::vector<double> errors;
  for (const auto& of_outputs : sums) {
    double worst = 0;
    for (const auto& sum : of_outputs) worst = std::max(worst, sum.signal > 0 ? sum.noise / sum.signal : 0);
    errors.push_back(worst);
  }
  return errors;
}

std::uint64_t memory_of_errors(const onnx::Model& model, const quantization::BlockPlacement& placement) {
  // Of a stripe: the columns, their integers and scales, what becomes of them; and as much that earlier work has left.
  constexpr std::uint64_t kCopies = 6;
  constexpr std::uint64_t kStripe = kStripeValues * sizeof(float);
  std::uint64_t largest = 0;
  for (const auto& tensor : placement.tensors)
    largest = std::max(largest, model.graph.initializers[tensor.initializer].data.size());
  return planning::kProcess + run::size_on_disk(model) + largest + kCopies * std::min(largest, kStripe);
}

}  // namespace detent::pipeline
