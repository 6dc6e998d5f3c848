// A small float model and its quantized form, with samples for both.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "exec/support.h"
#include "quantization/emit/barriers.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/tuned_layer.h"
#include "store/spool.h"

namespace detent::solve::test {

using namespace exec::test;  // NOLINT: the makers of small models

inline constexpr std::int64_t kInputs = 48, kHidden = 40, kOutputs = 12, kRows = 24;

/// x -> MatMul(a) -> Relu -> MatMul(b) -> y, and from the same hidden values MatMul(c) -> z.
inline Model float_model() {
  const auto weights = [](const std::string& name, std::int64_t rows, std::int64_t columns, unsigned seed) {
    return floats(name, {rows, columns}, floats_of(random_floats({rows, columns}, seed)));
  };
  return make_model(
      {{"MatMul", "first", {"x", "a"}, {"h"}},
       {"Relu", "relu", {"h"}, {"r"}},
       {"MatMul", "second", {"r", "b"}, {"y"}},
       {"MatMul", "third", {"r", "c"}, {"z"}}},
      {weights("a", kInputs, kHidden, 1), weights("b", kHidden, kOutputs, 2), weights("c", kHidden, kOutputs, 3)}, 17,
      {value("x", {kRows, kInputs})}, {value("y", {kRows, kOutputs}), value("z", {kRows, kOutputs})});
}

/// The same with each weight as int8 that spans 4 bits, and a scale for each column.
inline quantization::Emitted quantized_model() {
  quantization::Emitted emitted;
  Model model = float_model();
  std::vector<onnx::Node> nodes;
  std::vector<onnx::Tensor> initializers;
  for (const auto& weight : model.graph.initializers) {
    const auto rows = static_cast<std::size_t>(weight.dims[0]), columns = static_cast<std::size_t>(weight.dims[1]);
    const auto bytes = weight.data.bytes();
    Floats values(rows * columns), scales(columns);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      scales[i % columns] = std::max(scales[i % columns], std::abs(values[i]) / 7);
    }
    std::vector<std::int8_t> integers;
    for (std::size_t i = 0; i < values.size(); ++i) {
      integers.push_back(static_cast<std::int8_t>(std::nearbyint(values[i] / scales[i % columns])));
    }
    const std::vector<std::int8_t> zeros(columns);
    const auto width = static_cast<std::int64_t>(columns);
    const std::string& name = weight.name;
    emitted.provenance.values[name] = {name + "_quantized", name + "_scale", name + "_zero_point",
                                       name + "_DequantizeLinear_Output"};
    initializers.push_back(onnx::make_tensor<std::int8_t>(name + "_quantized", DataType::int8, weight.dims, integers));
    initializers.push_back(floats(name + "_scale", {width}, scales));
    initializers.push_back(onnx::make_tensor<std::int8_t>(name + "_zero_point", DataType::int8, {width}, zeros));
    nodes.push_back({"DequantizeLinear",
                     name + "_DequantizeLinear",
                     {name + "_quantized", name + "_scale", name + "_zero_point"},
                     {name + "_DequantizeLinear_Output"},
                     {Attribute::of_int("axis", 1)}});
  }
  for (const auto& node : model.graph.nodes) {
    emitted.provenance.nodes.emplace_back(nodes.size());
    if (node.is("MatMul")) {
      nodes.push_back({"MatMul",
                       node.name(),
                       {node.inputs()[0], node.inputs()[1] + "_DequantizeLinear_Output"},
                       {node.outputs()[0]}});
    } else {
      nodes.push_back(node);
    }
  }
  model.graph.nodes = std::move(nodes);
  model.graph.initializers = std::move(initializers);
  emitted.model = std::move(model);
  return emitted;
}

/// Samples whose inputs are correlated.
class Samples final : public data::SampleSource {
 public:
  explicit Samples(std::size_t count) : count_(count) {}
  std::optional<data::Sample> next() override {
    if (at_ == count_) return std::nullopt;
    const auto latent = floats_of(random_floats({kRows, 8}, 100 + static_cast<unsigned>(at_)));
    const auto mix = floats_of(random_floats({8, kInputs}, 50));
    Floats values = floats_of(random_floats({kRows, kInputs}, 200 + static_cast<unsigned>(at_)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= 0.3F;
      for (std::size_t k = 0; k < 8; ++k) values[i] += latent[i / kInputs * 8 + k] * mix[k * kInputs + i % kInputs];
    }
    ++at_;
    return data::Sample{"made", {array_of(DataType::float32, {kRows, kInputs}, values)}};
  }
  void rewind() override { at_ = 0; }
  std::size_t sample_count() const override { return count_; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::size_t count_, at_ = 0;
};

}  // namespace detent::solve::test
