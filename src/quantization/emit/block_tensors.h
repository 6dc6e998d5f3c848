// The initializers of weights in blocks, in the layouts that MatMulNBits, GatherBlockQuantized and DequantizeLinear
// read.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/blocks/block_stream.h"

namespace detent::quantization {

/// Names of the initializers of a weight.
struct BlockNames {
  std::string integers, scales, zero_points;  // the last empty where there are none
};

/// Makes initializers whose bytes are found when they are written: the integers of a weight while they go to the file,
/// its scales and zero points, which follow them there, in the same pass. Names are those of the weight with what they
/// are. Scales have the type of the weight.
class BlockTensors {
 public:
  /// `index` gives new names; `written` is told when the integers of weight t have been written.
  BlockTensors(graph::Index& index, std::vector<BlockStream> streams,
               std::function<void(std::size_t t, const BlockErrors& errors)> written);

  /// Of MatMulNBits: integers uint8 [columns, blocks, bytes of a block], scales [columns, blocks], zero points uint8
  /// [columns, bytes], those of a column from a byte of their own on. `again`: table() is made of the weight as well.
  BlockNames product(std::size_t t, const std::string& weight, bool again);
  /// Of QMoE, for a weight [experts, outputs, rows]: the same bytes, the first axis of each tensor divided in two.
  BlockNames experts(std::size_t t, const std::string& weight, std::int64_t experts);
  /// Of GatherBlockQuantized and of a DequantizeLinear along the last axis: a table [columns, rows], scales and zero
  /// points [columns, blocks], or [columns] for blocks of whole columns. `type` is that of integers and zero points.
  BlockNames table(std::size_t t, const std::string& weight, onnx::DataType type);
  /// Of a DequantizeLinear along the first axis: [rows, columns], scales and zero points [blocks, columns] or
  /// [columns]. Further ones of a weight have names of their own and share its data.
  BlockNames matrix(std::size_t t, const std::string& weight);
  /// In the weight's own shape, scales and zero points in `scale_dims`.
  BlockNames shaped(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& dims,
                    const std::vector<std::int64_t>& scale_dims);

  void add(const std::string& name, onnx::DataType type, std::vector<std::int64_t> dims, onnx::TensorData data);
  /// All initializers so far, in the order that they have to be written in.
  std::vector<onnx::Tensor> take() { return std::move(tensors_); }

 private:
  class Found;
  struct MatrixData {
    onnx::TensorData integers, scales, zero_points;
  };

  BlockNames product_as(std::size_t t, const std::string& weight, const std::vector<std::int64_t>& outputs,
                        const std::vector<std::int64_t>& integers, bool again);
  BlockNames names_of(const std::string& weight, const BlockFormat& format);
  MatrixData matrix_data(std::size_t t) const;
  BlockNames shaped_as(std::size_t t, const std::string& weight, onnx::DataType type,
                       const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& scale_dims);
  void add_integers(const std::string& name, onnx::DataType type, std::vector<std::int64_t> dims, std::size_t t);
  void add_scales(const std::string& name, std::vector<std::int64_t> dims, std::size_t t, bool again);
  void add_zero_points(const std::string& name, onnx::DataType type, std::vector<std::int64_t> dims, std::size_t t,
                       bool again);
  void add_packed_zero_points(const std::string& name, onnx::DataType type, std::vector<std::int64_t> dims,
                              std::size_t t);

  graph::Index& index_;
  std::vector<std::shared_ptr<Found>> found_;
  std::unordered_map<std::size_t, MatrixData> matrices_;
  std::vector<onnx::Tensor> tensors_;
};

/// The type of integers or floats that a DequantizeLinear of the format reads; integers without zero points have a
/// sign.
onnx::DataType element_type(const BlockFormat& format);
/// The type of its scales.
onnx::DataType scale_type(const BlockTensor& tensor);

}  // namespace detent::quantization
