// What a model has of a transformer: its layers, their shapes and bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace detent {

/// An attention with the products around it, and the MLP that follows. Figures that are not known are 0.
struct TransformerLayer {
  std::string attention;            // the node; of a plain one, its Softmax
  std::string kind;                 // its operator: GroupQueryAttention, MultiHeadAttention, …; plain: Softmax
  std::vector<std::string> inputs;  // nodes of the products that make queries, keys and values; one: they are fused
  std::string output;               // node of the product that reads the attention's result
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
  std::string mlp;           // "gated", "gated, fused" (one product makes gate and up), "plain", "experts", or ""
  std::int64_t inner = 0;    // values between the MLP's products, of experts of each
  std::int64_t experts = 0;  // 0: it has none
  std::vector<std::string> mlp_nodes;
  std::uint64_t attention_bytes = 0, mlp_bytes = 0;  // of weights, as they are stored
};

/// A table of vectors, or the product that makes scores of all its entries.
struct VocabularyWeight {
  std::string node;
  std::string weight;
  std::int64_t entries = 0, width = 0;
  std::uint64_t bytes = 0;
};

/// The layers of a transformer, and its first and last weight.
struct Transformer {
  std::vector<TransformerLayer> layers;  // in the order of the model
  std::int64_t hidden = 0;               // values that a layer passes on, for each position
  std::optional<VocabularyWeight> embedding;
  std::optional<VocabularyWeight> head;  // the last layer, which makes the scores
  bool is_tied = false;                  // embedding and head are one weight
};

}  // namespace detent
