#include "pipeline/blocks/drafted_blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "quantization/blocks/block_search.h"
#include "quantization/blocks/element_blocks.h"
#include "quantization/emit/blocks.h"
#include "shim/shared_work.h"

namespace detent::pipeline {

Error no_blocks(const std::filesystem::path& model, const quantization::BlockPlacement& placement) {
  return bad_input(fmt::format("model '{}' has no weights that can be stored in blocks", model.string()),
                   "what stays as it is, and why: " +
                       (placement.notes.empty() ? "no MatMul reads a constant matrix" : placement.notes.front()));
}

bool DraftedBlocks::any_type(onnx::DataType type) const {
  return std::any_of(placement.tensors.begin(), placement.tensors.end(),
                     [type](const auto& tensor) { return tensor.type == type; });
}

std::size_t DraftedBlocks::casts_of_inputs() const {
  const auto& inputs = model.graph.inputs;
  return static_cast<std::size_t>(std::count_if(inputs.begin(), inputs.end(), [](const auto& input) {
    return input.type == onnx::DataType::float16 || input.type == onnx::DataType::bfloat16;
  }));
}

bool DraftedBlocks::is_plain() const {
  return std::all_of(placement.tensors.begin(), placement.tensors.end(),
                     [](const auto& tensor) { return tensor.format.is_plain(); });
}

std::int64_t DraftedBlocks::needed_opset(WeightForm form) const {
  std::int64_t opset = 0;
  for (const auto& tensor : placement.tensors) {
    if (form == WeightForm::qdq || (!tensor.others.empty() && !tensor.as_experts))
      opset = std::max(opset, quantization::opset_of_blocks(tensor.format));
  }
  return opset;
}

void DraftedBlocks::find_common_scales() {
  for (auto& tensor : placement.tensors) {
    if (tensor.format.scales != ScaleType::float8e4m3fn) continue;
    const float largest = quantization::largest_value(model.graph.initializers[tensor.initializer], tensor);
    tensor.format.common_scale = quantization::common_scale(largest, tensor.format);
  }
}

void DraftedBlocks::share_out(WeightMethod method, shim::Ranks& ranks, const std::filesystem::path& directory,
                              std::size_t threads, const std::stop_token& stop) {
  if (method == WeightMethod::nearest) return;  // takes no longer than to exchange it
  std::vector<std::byte> left;                  // as rank 0 sees it, which has all that was solved
  for (std::size_t t = 0; t < placement.tensors.size(); ++t) left.push_back(std::byte{!is_solved(t)});
  shim::broadcast(ranks, left, stop);
  const TempDir folder(directory);
  in_pieces = solve::share_blocks(streams(method, threads, stop), left, ranks, folder.path(), stop);
}

std::vector<quantization::BlockStream> DraftedBlocks::streams(WeightMethod method, std::size_t threads,
                                                              std::stop_token stop) const {
  std::vector<quantization::BlockStream> all;
  for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
    const auto& tensor = placement.tensors[t];
    all.emplace_back(model.graph.initializers[tensor.initializer], tensor, solver(t, method, stop), threads);
  }
  return all;
}

quantization::BlockSolver DraftedBlocks::solver(std::size_t t, WeightMethod method, std::stop_token stop) const {
  const auto& tensor = placement.tensors[t];
  if (t < in_pieces.size() && !in_pieces[t].pieces.empty()) return in_pieces[t].solver();
  if (is_solved(t)) return quantization::scaled(solved.tensors[t]->solver(), tensor.column_factors);
  return [rows = tensor.rows, format = tensor.format, type = tensor.type, nearest = method == WeightMethod::nearest,
          stop](std::span<const float> columns, std::int64_t) {
    if (stop.stop_requested()) throw interrupted();
    if (!format.is_plain()) return quantization::element_blocks(columns, rows, format, !nearest);
    auto found = nearest ? quantization::nearest(columns, rows, format) : quantization::search(columns, rows, format);
    quantization::round_scales(found, columns, type, 0);
    return found;
  };
}

std::string DraftedBlocks::reason_against_running() const {
  if (any_type(onnx::DataType::bfloat16))
    return "neither model was run: the weights are bfloat16, which ONNX Runtime has no operators for on CPUs";
  if (placement.tensors.empty()) return "";  // all weights stay in float
  const auto& format = placement.tensors.front().format;
  if (format.floats == QuantType::float4e2m1 || format.scales == ScaleType::float8e8m0)
    return "the quantized model was not run: ONNX Runtime's CPU reads no float4e2m1 and no scales of float8e8m0";
  return "";
}

std::string DraftedBlocks::reason_against_proof() const {
  if (auto reason = reason_against_running(); !reason.empty()) return reason;
  return !placement.tensors.empty() && placement.tensors.front().format.floats
             ? "not every ONNX Runtime has small floats on CPUs"
             : "";
}

}  // namespace detent::pipeline
