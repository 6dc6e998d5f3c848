#include "cli/output/result_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text.h"
#include "cli/output/output.h"
#include "config/enum_names.h"
#include "config/formats.h"
#include "run/comparison/outcome.h"

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

namespace {

// JSON has no infinities: equal results give null.
nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

// What every form tells of its file.
nlohmann::json told_of_files(const AccuracyResult& a) {
  nlohmann::json out{{"samples", a.samples}, {"sqnr_db", number(a.sqnr_db)}, {"cosine", a.cosine}};
  if (!a.sample_names.empty()) out["sample_names"] = a.sample_names;
  if (a.worst_sample_db) out["worst_sample_db"] = number(*a.worst_sample_db);
  if (!a.lost_channels.empty()) out["lost_channels"] = a.lost_channels;
  if (const auto& c = a.worst_channels)
    out["worst_channels"] = {
        {"output", c->output}, {"axis", c->axis}, {"first", c->first}, {"last", c->last}, {"sqnr_db", c->sqnr_db}};
  if (a.rounded_db) out["rounded_db"] = number(*a.rounded_db);
  return out;
}

nlohmann::json accuracy_json(const AccuracyResult& a) {
  auto out = told_of_files(a);
  out["integer_macs"] = a.integer_macs ? number(*a.integer_macs) : nlohmann::json();
  out["wide_macs"] = a.wide_macs;
  for (const auto* list : {"equalized", "methods", "float_nodes", "wide_nodes", "sensitivities"})
    out[list] = nlohmann::json::array();
  out["weights_share"] = a.weights_share;
  if (a.score) out["score"] = *a.score;
  if (a.tuned) {
    out["tuned"] = {
        {"error_before", a.tuned->error_before}, {"error_after", a.tuned->error_after}, {"kept", a.tuned->kept}};
  }
  for (const auto& e : a.equalized) {
    out["equalized"].push_back({{"value", e.value}, {"error_before", e.error_before}, {"error_after", e.error_after}});
  }
  for (const auto& m : a.methods) {
    out["methods"].push_back(
        {{"value", m.value}, {"method", m.method}, {"error_before", m.error_before}, {"error_after", m.error_after}});
  }
  const auto list_nodes = [&](const char* name, const std::vector<FallbackNode>& nodes) {
    for (const auto& n : nodes)
      out[name].push_back({{"node", n.node}, {"error_share", n.error_share}, {"macs_share", n.macs_share}});
  };
  list_nodes("float_nodes", a.float_nodes);
  list_nodes("wide_nodes", a.wide_nodes);
  for (const auto& s : a.sensitivities) {
    out["sensitivities"].push_back({{"value", s.value},
                                    {"node", s.node},
                                    {"kind", s.is_weight ? "weight" : "activation"},
                                    {"error", s.error},
                                    {"sqnr_db", number(in_db(s.error))}});
  }
  return out;
}

nlohmann::json plan_json(const BitsPlan& plan) {
  nlohmann::json out{
      {"max_size", plan.max_size}, {"size", plan.size}, {"error", plan.error}, {"weights", nlohmann::json::array()}};
  for (const auto& w : plan.weights)
    out["weights"].push_back(
        {{"name", w.name}, {"node", w.node}, {"bits", w.bits}, {"bytes", w.bytes}, {"error", w.error}});
  if (plan.reached) {
    out["reached"] = number(*plan.reached);
    for (const auto& t : plan.tried) out["tried"].push_back({{"size", t.size}, {"value", number(t.value)}});
  }
  return out;
}

nlohmann::json outcome_json(const QuantizeResult& r) {
  const auto& outcome = r.outcome;
  nlohmann::json kept = nlohmann::json::array();
  for (const auto& node : run::kept_nodes(r)) kept.push_back({{"node", node.node}, {"why", node.why}});
  return {{"outcome",
           {{"answer", config::word_of(config::enum_names<Outcome::Answer>(), static_cast<int>(outcome.answer))},
            {"headline", outcome.headline},
            {"reasons", outcome.reasons}}},
          {"kept", std::move(kept)}};
}

// The options that a member of a family was made with.
QuantizeOptions options_of(const FamilyMember& member, const QuantizeOptions& options) {
  auto single = options;
  single.family = {member.name};
  single = config::options_of(*config::family_of(single).front(), single);
  single.output = member.output;
  return single;
}

nlohmann::json layers_json(const std::vector<LayerTuning>& layers) {
  auto out = nlohmann::json::array();
  for (const auto& l : layers) {
    out.push_back({{"name", l.name},
                   {"op_type", l.op_type},
                   {"form", l.streamed ? "streamed" : "gram"},
                   {"tuned", l.tuned},
                   {"error_before", l.error_before},
                   {"error_after", l.error_after},
                   {"seconds", l.seconds}});
  }
  return out;
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
  nlohmann::json out{{"output", options.output.string()},          {"samples", r.samples},
                     {"model_bytes_before", r.model_bytes_before}, {"model_bytes_after", r.model_bytes_after},
                     {"nodes_quantized", r.nodes_quantized},       {"nodes_in_float", r.nodes_in_float},
                     {"faster_in_float", r.faster_in_float},       {"notes", r.notes},
                     {"peak_memory_bytes", r.peak_memory}};
  out.update(outcome_json(r));
  if (r.ranks > 1) out["received_bytes"] = r.received_bytes;
  for (const auto& s : r.stages)
    out["stages"].push_back({{"name", s.name}, {"seconds", s.seconds}, {"peak_memory_bytes", s.peak_memory}});
  if (r.transformer) out["transformer"] = transformer_json(*r.transformer);
  if (!r.layers.empty()) out["layers"] = layers_json(r.layers);
  for (const auto& w : r.weights) {
    out["weights"].push_back({{"name", w.name},
                              {"node", w.node},
                              {"op_type", w.op_type},
                              {"bits", w.bits},
                              {"block_size", w.block_size},
                              {"rows", w.rows},
                              {"columns", w.columns},
                              {"method", w.method},
                              {"sqnr_db", number(w.sqnr_db)}});
    if (w.output_error) out["weights"].back()["output_error"] = *w.output_error;
    if (w.dense_error) out["weights"].back()["dense_error"] = *w.dense_error;
    if (w.input_exponent) out["weights"].back()["input_exponent"] = *w.input_exponent;
  }
  if (r.bits_plan) out["bits_plan"] = plan_json(*r.bits_plan);
  for (const auto& layer : r.kv_scales)
    out["kv_scales"].push_back({{"layer", layer.layer}, {"keys", layer.keys}, {"values", layer.values}});
  if (r.rotated) {
    out["rotated"] = {
        {"error_before", r.rotated->error_before}, {"error_after", r.rotated->error_after}, {"kept", r.rotated->kept}};
  }
  if (r.floats) {
    out["floats"] = {{"nodes", r.floats->nodes},
                     {"nodes_kept", r.floats->nodes_kept},
                     {"casts", r.floats->casts},
                     {"constants", r.floats->constants}};
  }
  if (r.accuracy && has_remedies(options, r)) out["accuracy"] = accuracy_json(*r.accuracy);
  if (r.accuracy && !has_remedies(options, r)) {
    out["accuracy"] = told_of_files(*r.accuracy);
  }
  if (r.latency) {
    out["latency"] = {{"before", latency_json(r.latency->before)},
                      {"after", latency_json(r.latency->after)},
                      {"threads", r.latency->threads},
                      {"samples", r.latency->samples},
                      {"synthetic", r.latency->synthetic}};
  }
  for (const auto& [name, p] : r.activations) {
    out["activations"][name] = {{"scale", p.scale},
                                {"zero_point", p.zero_point},
                                {"min", p.range_min},
                                {"max", p.range_max},
                                {"method", p.method}};
  }
  return out;
}

}  // namespace detent::cli
