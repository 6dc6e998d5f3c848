// The cache of keys and values in fewer bits, as GroupQueryAttention of ONNX Runtime has it.
#pragma once

#include <span>

#include "detent/config.h"
#include "detent/quantize.h"
#include "onnx/model.h"

namespace detent::quantization {

/// Gives each attention its scales, and graph inputs and outputs of its cache their new type; 4 bits are packed two by
/// two along the channels. `scales` are those of graph::cached_attentions(), in their order.
void emit_kv_cache(onnx::Model& model, const KvCacheConfig& config, std::span<const KvScales> scales);

}  // namespace detent::quantization
