#include "run/model/finish.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/results.h"
#include "config/targets.h"
#include "exec/guarded_session.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/emit/integer_operators.h"
#include "quantization/formats.h"
#include "quantization/placement/selection.h"
#include "quantization/weight_operators.h"

namespace detent::run {
namespace {

using onnx::DataType;

// Where a type comes into a graph to be computed in: constants that are only stored so are read by Casts.
bool mentions(const onnx::Model& model, DataType type) {
  const auto is = [type](const auto& each) { return each.type == type; };
  const auto names_it = [type](const onnx::Attribute& a) {
    return a.kind() == onnx::Attribute::Kind::i && (a.name() == "to" || a.name() == "dtype") &&
           a.as_int() == static_cast<std::int64_t>(type);
  };
  const auto& graph = model.graph;
  const graph::Index index(model);
  const auto is_read = [&](const onnx::Tensor& tensor) {
    const auto computes = [&](int n) { return !graph.nodes[static_cast<std::size_t>(n)].is("Cast"); };
    return tensor.type == type &&
           (index.is_output(tensor.name) || std::ranges::any_of(index.consumers(tensor.name), computes));
  };
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), is) ||
         std::any_of(graph.initializers.begin(), graph.initializers.end(), is_read) ||
         std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const auto& node) {
           return std::any_of(node.attributes().begin(), node.attributes().end(), names_it);
         });
}

// Whether products are in 16 bits: weights that are only stored so, or a Cast somewhere, make no such model.
bool multiplies_low(const onnx::Model& model, const graph::ValueTypes& types) {
  bool any = false;
  for (const auto& node : model.graph.nodes) {
    if (!graph::is_product(node)) continue;
    any = true;
    const auto type = graph::type_of(model, types, node.outputs()[0]);
    if (type == DataType::float16 || type == DataType::bfloat16) return true;
  }
  return !any;
}

}  // namespace

Has16BitFloats find_16_bit_floats(const onnx::Model& model) {
  return {mentions(model, DataType::float16), mentions(model, DataType::bfloat16)};
}

Has16BitFloats find_16_bit_floats(const std::filesystem::path& file) {
  auto model = onnx::read_model(file);
  graph::unfold(model);
  graph::lift_constants(model);
  return find_16_bit_floats(model);
}

graph::ValueTypes low_types(onnx::Model model, const Has16BitFloats& low, const exec::PortsOf& ports_of) {
  if (low.brain) graph::relabel_bfloat16_as_float16(model);
  return exec::infer_value_types(ports_of, model);
}

std::optional<KeptFloats> kept_floats(onnx::Model model, const QuantConfig& config, const exec::Runtime& runtime,
                                      const graph::UnfoldLimits& limits) {
  if (config.float_type != FloatType::keep) return std::nullopt;
  graph::unfold(model, limits);
  graph::lift_constants(model);
  graph::drop_initializer_inputs(model);
  graph::sort_topologically(model);
  const auto low = find_16_bit_floats(model);
  if (!low.half && !low.brain) return std::nullopt;
  const auto types = low_types(model, low, exec::guarded_ports(runtime, {.stop = limits.stop}));
  if (!multiplies_low(model, types)) return std::nullopt;
  if (low.half && low.brain)
    throw bad_input(fmt::format("model '{}' has both float16 and bfloat16", model.path.string()),
                    "give --float 16, bf16 or 32 for the type that it shall have");
  KeptFloats kept{low.half ? FloatType::float16 : FloatType::bfloat16, {}};
  for (const auto& node : model.graph.nodes) {
    const auto is_high = [&](const auto& value) {
      return !value.empty() && graph::type_of(model, types, value) == DataType::float32;
    };
    if (!node.is("Cast") && std::any_of(node.outputs().begin(), node.outputs().end(), is_high))
      kept.in_float32.insert(node.id());
  }
  return kept;
}

namespace {

// Keys and values of each layer, one after another. Both models have the same outputs, but what makes them may have
// been renamed, and may be cast.
std::vector<calibration::CacheValue> watched(const onnx::Model& running,
                                             const std::vector<graph::CachedAttention>& caches) {
  const graph::Index index(running);
  const auto maker = [&](std::string value) {
    for (int n = index.producer(value); n != graph::kNone; n = index.producer(value)) {
      const auto& node = running.graph.nodes[static_cast<std::size_t>(n)];
      if (!node.is("Cast") && !node.is("Identity")) break;
      value = node.inputs()[0];
    }
    return value;
  };
  std::vector<calibration::CacheValue> values;
  for (const auto& cache : caches) {
    values.push_back({maker(cache.present_key), cache.heads, cache.head_size, cache.rotated, cache.neighbours});
    values.push_back({maker(cache.present_value), cache.heads, cache.head_size});
  }
  return values;
}

// A cache of numbers that are no floats, where the sample has another type.
bool is_of_another_cache(const data::Array& array, const data::InputSpec& spec) {
  return array.type != spec.type && !data::holds_floats(spec.type);
}

}  // namespace

KvCacheRun::KvCacheRun(const onnx::Model& model, const onnx::Model& running, const KvCacheConfig& config)
    : config_(config),
      caches_(quantizable_caches(model, config.type)),
      observer_(watched(running, caches_), config.per_channel) {
  for (const auto& value : watched(running, caches_)) values_.push_back(value.value);
}

void KvCacheRun::apply(onnx::Model& emitted, QuantizeResult& result) const {
  result.kv_scales.clear();
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    result.kv_scales.push_back(
        {caches_[i].layer, observer_.scales(2 * i, config_.type), observer_.scales(2 * i + 1, config_.type)});
  }
  quantization::Assignment assignment;
  assignment.cache = {config_, result.kv_scales};
  emitted = quantization::emit_kv_cache({std::move(emitted)}, assignment).model;
}

std::string KvCacheRun::reason_against_running(const std::string& runtime_version) const {
  if (caches_.front().is_joined()) return {};
  constexpr int kSince = 27;  // 1.27 has the kernels
  if (config_.type == KvCacheType::float8e4m3fn)
    return "ONNX Runtime has attention with a cache of float8e4m3fn for CUDA alone, not for CPUs";
  const auto dot = runtime_version.find('.');
  const int major = std::atoi(runtime_version.c_str());
  const int minor = dot == std::string::npos ? 0 : std::atoi(runtime_version.c_str() + dot + 1);
  if (major > 1 || minor >= kSince) return {};
  return fmt::format("ONNX Runtime {} has no attention with a cache of integers for CPUs; 1.27 and later have",
                     runtime_version);
}

std::vector<graph::CachedAttention> quantizable_caches(const onnx::Model& model, KvCacheType type) {
  auto caches = graph::cached_attentions(model);
  if (caches.front().is_joined() && type != KvCacheType::int8)
    throw bad_input(fmt::format("model '{}': a Concat joins the earlier keys to new ones, which only int8 can be",
                                model.path.string()),
                    "give --kv-cache int8");
  return caches;
}

void check_scale_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed) || std::filesystem::is_empty(path, failed)) return;
  const auto json = parse_json(read_small_file(path, "scales"));
  if (json && json->is_object() && json->contains("scales")) return;
  throw usage_error(fmt::format("--set kv-cache-scales: '{}' exists and has no scales of a cache", path.string()),
                    "choose another name, or remove it");
}

void write_scale_file(const std::filesystem::path& path, const std::vector<KvScales>& scales) {
  // A number where there is one for a layer.
  const auto of_layer = [](const std::vector<float>& all) {
    return all.size() == 1 ? nlohmann::ordered_json(all.front()) : nlohmann::ordered_json(all);
  };
  nlohmann::ordered_json keys = nlohmann::ordered_json::array(), values = keys, layers = keys;
  for (const auto& layer : scales) {
    keys.push_back(of_layer(layer.keys));
    values.push_back(of_layer(layer.values));
    layers.push_back(layer.layer);
  }
  const nlohmann::ordered_json file{{"scales", {{"k_scales", keys}, {"v_scales", values}}}, {"layer_ids", layers}};
  const auto text = json_text(file, 2) + "\n";
  AtomicFile out(path);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

bool fills_cache(const std::vector<data::Array>& inputs, const std::vector<data::InputSpec>& specs) {
  for (std::size_t i = 0; i < inputs.size() && i < specs.size(); ++i) {
    if (is_of_another_cache(inputs[i], specs[i]) && !inputs[i].bytes.empty()) return true;
  }
  return false;
}

std::vector<data::Array> with_cache_of(const std::vector<data::Array>& inputs,
                                       const std::vector<data::InputSpec>& specs) {
  auto made = inputs;
  for (std::size_t i = 0; i < made.size() && i < specs.size(); ++i) {
    auto& array = made[i];
    const auto& spec = specs[i];
    if (!is_of_another_cache(array, spec)) {
      array = data::as_floats(array, spec.type);
      continue;
    }
    if (!array.bytes.empty())
      throw bad_input(
          fmt::format("input '{}' has another type in the quantized model, and the samples fill it", spec.name),
          "give samples with an empty cache");
    array.type = spec.type;
    if (spec.shape && spec.shape->size() == array.shape.size() && spec.shape->back() >= 0)
      array.shape.back() = spec.shape->back();
  }
  return made;
}

namespace {

// Where recurrent layers have no integers at all.
std::vector<std::string> notes_of_recurrent(const onnx::Model& model) {
  quantization::LeftInFloat left;
  for (const auto& node : model.graph.nodes) {
    if (graph::is_recurrent(node))
      left.add(node, "detent writes recurrent layers on integers for ONNX Runtime's CPU alone");
  }
  return left.notes();
}

std::string count_in_float_text(std::size_t count, const char* type) {
  return fmt::format("{} {} layer{} in float", count, type, count == 1 ? " stays" : "s stay");
}

// What could be smaller, or on integers, where the user named no operators.
std::vector<std::string> notes_of_unnamed(const Prepared& prepared, QuantConfig config) {
  if (!config::target(config).is_ort_cpu) return notes_of_recurrent(prepared.model);
  if (!config.op_types.empty() || !config.nodes.empty() || config::writes_16_bits(config)) return {};
  std::vector<std::string> notes;
  const auto& nodes = prepared.model.graph.nodes;
  const auto stored = stored_layers(prepared);
  const auto grus = static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [&](const auto& node) { return node.is("GRU") && !stored.contains(node.id()); }));
  if (grus > 0) notes.push_back(count_in_float_text(grus, "GRU") + ": ONNX Runtime has no integer GRU");
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("LSTM"); })) return notes;
  if (std::ranges::any_of(prepared.nodes, [](const auto& entry) { return entry.second.on_integers; })) return notes;
  config.op_types = {"LSTM"};
  config.exclude_nodes.clear();
  config.exclude_op_types.clear();
  auto layers = quantization::recurrent_layers(prepared.model, config);
  std::erase_if(layers, [&](std::size_t n) { return stored.contains(nodes[n].id()); });
  if (!layers.empty())
    notes.push_back(fmt::format("{}: --op-types Conv,ConvTranspose,Gemm,MatMul,LSTM gives {} weights of 8 bits",
                                count_in_float_text(layers.size(), "LSTM"), layers.size() == 1 ? "it" : "them"));
  return notes;
}

std::vector<std::string> quantize_recurrent(const Prepared& prepared, const QuantizeOptions& options,
                                            onnx::Model& quantized) {
  QuantConfig own = options.config;
  own.nodes.clear();
  for (const auto n : recurrent_layers(prepared, options.config))
    own.nodes.push_back(prepared.model.graph.nodes[n].id());
  if (own.nodes.empty()) return notes_of_unnamed(prepared, options.config);
  own.op_types = {"LSTM"};
  own.exclude_op_types.clear();
  own.exclude_nodes.clear();
  if (quantization::is_4_bit(own.weight_type)) own.weight_type = QuantType::int8;
  auto made = quantization::make_dynamic(std::move(quantized), own, options.allow_nonfinite);
  quantized = std::move(made.model);
  made.notes.push_back(fmt::format("{} with 8-bit weights, and scales of activations found while the model runs",
                                   count_with_noun(made.placement.quantized, "LSTM layer")));
  return std::move(made.notes);
}

}  // namespace

std::vector<std::size_t> recurrent_layers(const Prepared& prepared, const QuantConfig& config) {
  auto layers = quantization::recurrent_layers(prepared.model, config);
  const bool named = quantization::names_recurrent(config);
  std::erase_if(layers, [&](std::size_t n) {
    const auto& id = prepared.model.graph.nodes[n].id();
    return prepared.keeps_in_float(id) || !(named || prepared.choice(id).on_integers);
  });
  return layers;
}

std::set<std::string> stored_layers(const Prepared& prepared) {
  std::set<std::string> layers;
  for (const auto& node : prepared.model.graph.nodes) {
    const auto& id = node.id();
    if (graph::is_recurrent(node) && prepared.choice(id).stored && !prepared.keeps_in_float(id)) layers.insert(id);
  }
  return layers;
}

std::set<std::string> stored_products(const Prepared& prepared) {
  std::set<std::string> products;
  for (const auto& node : prepared.model.graph.nodes) {
    if (graph::is_product(node) && prepared.choice(node.id()).stored) products.insert(node.id());
  }
  return products;
}

std::vector<std::string> store_weights(const std::set<std::string>& nodes, onnx::Model& quantized) {
  const auto count = quantization::store_weights(quantized, nodes);
  if (count == 0) return {};
  return config::graph_notes({fmt::format("weights of 8 bits that become floats when the model is loaded: {}",
                                          count_with_noun(count, "node"))});
}

bool changes_recurrent(const Prepared& prepared, const QuantConfig& config) {
  return !stored_layers(prepared).empty() || !recurrent_layers(prepared, config).empty();
}

std::vector<std::string> finish_integers(const Prepared& prepared, const QuantizeOptions& options,
                                         onnx::Model& quantized) {
  auto notes = quantize_recurrent(prepared, options, quantized);
  auto stored = stored_layers(prepared);
  stored.merge(quantization::products_in_float(quantized, stored_products(prepared), prepared.transposed));
  for (auto& note : store_weights(stored, quantized)) notes.push_back(std::move(note));
  if (options.config.quant_format == QuantFormat::qoperator) {
    const auto made = quantization::to_qoperators(quantized);
    notes.push_back(
        fmt::format("{}operators on integers: {}; between QuantizeLinear and DequantizeLinear, since there is no such "
                    "operator: {}",
                    config::kGraphNote, made.nodes, made.left));
  }
  const bool is_ort_cpu = config::target(options.config).is_ort_cpu;
  graph::deduplicate_constants(quantized, prepared.shapes_stored_once, is_ort_cpu);
  if (config::writes_hard_sigmoids(options.config)) {
    graph::compose_hard_swishes(quantized);
    if (options.config.quant_format == QuantFormat::qdq) quantization::load_weights_of_float_products(quantized);
  }
  if (is_ort_cpu) graph::recompute_constants_at_load(quantized, prepared.folded);
  return notes;
}

}  // namespace detent::run
