// Private to exec/: AMD Quark's operators on block floats as custom operators of ONNX Runtime, so that models with them
// run here without Quark's library.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "exec/ort.h"

namespace detent::exec {

struct BlockKernel {
  std::int64_t axis = 1;
  std::size_t block_size = 8;
  std::function<void(std::span<float>)> round;

  OrtStatusPtr ComputeV2(OrtKernelContext* context);
};

/// `create` reads the attributes of a node.
class BlockOperator : public Ort::CustomOpBase<BlockOperator, BlockKernel, true> {
 public:
  using Create = BlockKernel (*)(const Ort::ConstKernelInfo&);
  BlockOperator(const char* name, Create create) : name_(name), create_(create) {}

  const char* GetName() const { return name_; }
  std::size_t GetInputTypeCount() const { return 1; }
  std::size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  ONNXTensorElementDataType GetOutputType(std::size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  OrtStatusPtr CreateKernelV2(const OrtApi& api, const OrtKernelInfo* info, void** kernel) const;

  static Ort::Status InferOutputShape(Ort::ShapeInferContext& context);

 private:
  const char* name_;
  Create create_;
};

/// The domain com.amd.quark with both operators.
class BlockDomain {
 public:
  BlockDomain();
  void add_to(Ort::SessionOptions& options) { options.Add(domain_); }

 private:
  BlockOperator shared_, scaled_;
  Ort::CustomOpDomain domain_{nullptr};
};

}  // namespace detent::exec
