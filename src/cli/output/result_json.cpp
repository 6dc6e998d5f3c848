#include "cli/output/result_json.h"

#include "base/text.h"
#include "config/formats.h"
#include "run/comparison/outcome.h"

namespace detent::cli {
namespace {

// " of 64"; empty where it is not known.
std::string of(std::int64_t size) { return size > 0 ? fmt::format(" of {}", size) : ""; }

std::string words_of(const TransformerLayer& layer) {
  std::string text = layer.kind == "Softmax" ? "attention written out" : layer.kind;
  if (layer.heads > 0) text += fmt::format(" of {} heads{}", layer.heads, of(layer.head_size));
  if (layer.kv_heads > 0 && layer.kv_heads != layer.heads)
    text += fmt::format(", {} of keys and values", layer.kv_heads);
  text += fmt::format("; queries, keys and values by {}",
                      layer.inputs.size() == 1 ? "one MatMul" : fmt::format("{} MatMul", layer.inputs.size()));
  if (layer.mlp == "experts")
    text += fmt::format("; {} experts{}", layer.experts, of(layer.inner));
  else if (!layer.mlp.empty())
    text += fmt::format("; MLP {}{}{}", layer.mlp, layer.inner > 0 ? "," : "", of(layer.inner));
  return text;
}

}  // namespace

nlohmann::json transformer_json(const Transformer& transformer) {
  auto out = config::result_json(transformer);
  if (const auto layers = out.find("layers"); layers != out.end()) {
    for (auto& layer : *layers) {
      if (layer["experts"] == 0) layer.erase("experts");
      config::keep_lists(layer, {"inputs", "mlp_nodes"});
    }
  }
  return out;
}

void print_transformer(const Transformer& transformer) {
  const auto& layers = transformer.layers;
  print_text("transformer: {}{}\n", count_with_noun(layers.size(), "layer"), of(transformer.hidden));
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
               transformer.is_tied ? ", also the last layer's weight" : "");
  if (const auto& head = transformer.head; head && !transformer.is_tied)
    print_text("  last layer: {} scores of {} ({})\n", head->entries, head->width, format_size(head->bytes));
}

namespace {

// What every form tells of its file, and what is told where remedies could be tried.
nlohmann::json accuracy_json(const AccuracyResult& a, bool with_remedies) {
  auto out = config::result_json(a);
  if (!with_remedies) {
    for (const auto* name : {"integer_macs", "wide_macs", "weights_share", "score", "tuned", "equalized", "methods",
                             "float_nodes", "wide_nodes", "sensitivities"})
      out.erase(name);
    return out;
  }
  out.emplace("integer_macs", nullptr);
  config::keep_lists(out, {"equalized", "methods", "float_nodes", "wide_nodes", "sensitivities"});
  for (std::size_t i = 0; i < a.sensitivities.size(); ++i) {
    auto& told = out["sensitivities"][i];
    told.erase("is_weight");
    told["kind"] = a.sensitivities[i].is_weight ? "weight" : "activation";
    told["sqnr_db"] = config::result_json(in_db(a.sensitivities[i].error));
  }
  return out;
}

// The options that a member of a family was made with.
QuantizeOptions options_of(const FamilyMember& member, const QuantizeOptions& options) {
  auto single = options;
  single.family = {member.name};
  single = config::options_of(*config::family_of(single).front(), single);
  single.output = member.output;
  return single;
}

nlohmann::json family_json(const QuantizeOptions& options, const QuantizeResult& r) {
  nlohmann::json out{
      {"output", options.output.string()},        {"samples", r.samples}, {"model_bytes_before", r.model_bytes_before},
      {"model_bytes_after", r.model_bytes_after}, {"notes", r.notes},     {"peak_memory_bytes", r.peak_memory},
      {"family", nlohmann::json::array()}};
  if (r.ranks > 1) out["received_bytes"] = r.received_bytes;
  for (const auto& member : r.family) {
    auto told = quantize_json(options_of(member, options), member.result);
    told["member"] = member.name;
    out["family"].push_back(std::move(told));
  }
  return out;
}

}  // namespace

bool has_remedies(const QuantizeOptions& options, const QuantizeResult& r) {
  const bool changed_types = r.floats && r.nodes_quantized == 0;
  const bool fixed = options.config.activations == Activations::fixed && options.config.block_float == BlockFloat::none;
  return r.weights.empty() && r.kv_scales.empty() && fixed && !changed_types;
}

nlohmann::json quantize_json(const QuantizeOptions& options, const QuantizeResult& r) {
  if (!r.family.empty()) return family_json(options, r);
  auto out = config::result_json(r);
  out["output"] = options.output.string();
  config::keep_lists(out, {"faster_in_float", "notes", "kept"});
  config::keep_lists(out["outcome"], {"reasons"});
  for (const auto& node : run::kept_nodes(r)) out["kept"].push_back({{"node", node.node}, {"why", node.why}});
  if (r.ranks > 1) out["received_bytes"] = r.received_bytes;
  if (r.transformer) out["transformer"] = transformer_json(*r.transformer);
  for (std::size_t i = 0; i < r.layers.size(); ++i) {
    out["layers"][i].erase("streamed");
    out["layers"][i]["form"] = r.layers[i].streamed ? "streamed" : "gram";
  }
  if (r.bits_plan) {
    config::keep_lists(out["bits_plan"], {"weights"});
    if (!r.bits_plan->reached) out["bits_plan"].erase("tried");
  }
  for (std::size_t i = 0; i < r.kv_scales.size(); ++i) config::keep_lists(out["kv_scales"][i], {"keys", "values"});
  if (r.accuracy) out["accuracy"] = accuracy_json(*r.accuracy, has_remedies(options, r));
  return out;
}

}  // namespace detent::cli
