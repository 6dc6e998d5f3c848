#include "cli/output/transformer_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/bytes.h"
#include "cli/output/output.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const TransformerLayer& layer) {
  nlohmann::json out{{"attention", layer.attention},
                     {"kind", layer.kind},
                     {"inputs", layer.inputs},
                     {"output", layer.output},
                     {"heads", layer.heads},
                     {"kv_heads", layer.kv_heads},
                     {"head_size", layer.head_size},
                     {"mlp", layer.mlp},
                     {"inner", layer.inner},
                     {"mlp_nodes", layer.mlp_nodes},
                     {"attention_bytes", layer.attention_bytes},
                     {"mlp_bytes", layer.mlp_bytes}};
  if (layer.experts > 0) out["experts"] = layer.experts;
  return out;
}

nlohmann::json to_json(const VocabularyWeight& weight) {
  return {{"node", weight.node},
          {"weight", weight.weight},
          {"entries", weight.entries},
          {"width", weight.width},
          {"bytes", weight.bytes}};
}

std::string known(std::int64_t count) { return count > 0 ? std::to_string(count) : "?"; }

std::string words_of(const TransformerLayer& layer) {
  auto text = fmt::format("{} of {} heads of {}", layer.kind == "Softmax" ? "attention written out" : layer.kind,
                          known(layer.heads), known(layer.head_size));
  if (layer.kv_heads != layer.heads) text += fmt::format(", {} of keys and values", known(layer.kv_heads));
  text += fmt::format("; queries, keys and values by {}",
                      layer.inputs.size() == 1 ? "one product" : fmt::format("{} products", layer.inputs.size()));
  if (layer.mlp == "experts")
    text += fmt::format("; {} experts of {}", known(layer.experts), known(layer.inner));
  else if (!layer.mlp.empty())
    text += fmt::format("; MLP {}, of {}", layer.mlp, known(layer.inner));
  return text;
}

}  // namespace

nlohmann::json transformer_json(const Transformer& transformer) {
  nlohmann::json out{{"hidden", transformer.hidden}, {"tied", transformer.is_tied}};
  for (const auto& layer : transformer.layers) out["layers"].push_back(to_json(layer));
  if (transformer.embedding) out["embedding"] = to_json(*transformer.embedding);
  if (transformer.head) out["head"] = to_json(*transformer.head);
  return out;
}

void print_transformer(const Transformer& transformer) {
  const auto& layers = transformer.layers;
  print_text("transformer: {} of {}\n", count_with_noun(layers.size(), "layer"), known(transformer.hidden));
  for (std::size_t first = 0, next = 0; first < layers.size(); first = next) {
    const auto words = words_of(layers[first]);
    std::uint64_t attention = 0, mlp = 0;
    for (; next < layers.size() && words_of(layers[next]) == words; ++next) {
      attention += layers[next].attention_bytes;
      mlp += layers[next].mlp_bytes;
    }
    const auto range = next - first == 1 ? fmt::format("{}", first) : fmt::format("{} to {}", first, next - 1);
    print_text("  {}: {} ({} and {})\n", range, words, format_size(attention), format_size(mlp));
  }
  if (const auto& table = transformer.embedding)
    print_text("  embedding: {} entries of {} ({}){}\n", table->entries, table->width, format_size(table->bytes),
               transformer.is_tied ? ", also the last product's weight" : "");
  if (const auto& head = transformer.head; head && !transformer.is_tied)
    print_text("  last product: {} scores of {} ({})\n", head->entries, head->width, format_size(head->bytes));
}

}  // namespace detent::cli
