#include "run/comparison/rounded_floats.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <unordered_map>

#include "base/bytes.h"
#include "data/floats.h"
#include "exec/emit.h"
#include "graph/bfloat16.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/bodies.h"
#include "quantization/floats/half_values.h"
#include "run/model/float_types_16_bit.h"
#include "run/model/prepare.h"

namespace detent::run {
namespace {

using onnx::DataType;

constexpr std::size_t kPiece = std::size_t{1} << 16;  // values that a thread rounds at a time

std::vector<std::string> values_in_float16(const onnx::Model& model, const graph::ValueTypes& types) {
  std::vector<std::string> values;
  for (const auto& node : model.graph.nodes) {
    if (node.op_type() == onnx::kBodyInputs) continue;  // rounded where they were made
    for (const auto& output : node.outputs()) {
      if (!output.empty() && graph::type_of(model, types, output) == DataType::float16) values.push_back(output);
    }
  }
  return values;
}

// Which of the values are float16; the others are bfloat16.
std::function<bool(const std::string&)> half_values(const onnx::Model& model, const Has16BitFloats& has,
                                                    const exec::PortsOf& ports_of,
                                                    const std::filesystem::path& directory) {
  if (!has.half || !has.brain) return [half = has.half](const auto&) { return half; };
  auto other = model;
  graph::bfloat16_to_float32(other, file_store(directory, "bfloat"));
  auto types = exec::infer_value_types(ports_of, other);
  return [types = std::move(types)](const std::string& value) {
    const auto found = types.find(value);
    return found != types.end() && found->second.type == DataType::float16;
  };
}

}  // namespace

LowValues raise_for_rounding(onnx::Model& model, const exec::PortsOf& ports_of,
                             const std::filesystem::path& directory) {
  const auto has = find_16_bit_floats(model);
  if (!has.half && !has.brain) return {};
  const auto values = values_in_float16(model, low_types(model, has, ports_of));
  const auto is_half = half_values(model, has, ports_of, directory);
  graph::half_floats_to_float32(model, file_store(directory, "float"), true);
  const graph::Index index(model);
  LowValues low;
  for (const auto& value : values) {
    // A result of the model is a cast of what readers in the model see.
    const auto& node = model.graph.nodes[static_cast<std::size_t>(index.producer(value))];
    const bool is_result = index.is_output(value) && node.is("Cast");
    low.emplace_back(is_result ? node.inputs()[0] : value, is_half(value) ? FloatType::float16 : FloatType::bfloat16);
  }
  return low;
}

// Rounds, and hands on what others asked for.
class RoundedSession::Receiver : public data::TapReceiver {
 public:
  Receiver(std::vector<Tap>& taps, data::TapReceiver* next) : taps_(taps), next_(next) {}

  void receive(std::size_t at, const data::TensorView& tensor, const data::ParallelFor& parallel) override {
    auto& tap = taps_[at];
    if (tap.type && tensor.type == DataType::float32) round(tensor, tap, parallel);
    if (tap.position && next_ != nullptr) next_->receive(*tap.position, tensor, parallel);
  }

 private:
  static void round(const data::TensorView& tensor, Tap& tap, const data::ParallelFor& parallel) {
    const std::span<float> values(reinterpret_cast<float*>(tensor.passed_on.data()),
                                  tensor.passed_on.size() / sizeof(float));
    std::atomic<std::size_t> overflows = 0;
    parallel((values.size() + kPiece - 1) / kPiece, [&](std::size_t i) {
      const auto piece = values.subspan(i * kPiece, std::min(kPiece, values.size() - i * kPiece));
      overflows += quantization::round_to_16_bits(piece, *tap.type);
    });
    tap.overflows += overflows;
  }

  std::vector<Tap>& taps_;
  data::TapReceiver* next_;
};

std::vector<RoundedSession::Tap> RoundedSession::all_taps(const LowValues& low, const std::vector<std::string>& taps) {
  std::vector<Tap> all;
  std::unordered_map<std::string, std::size_t> known;
  for (const auto& [value, type] : low) {
    if (known.try_emplace(value, all.size()).second) all.push_back({.value = value, .type = type});
  }
  for (std::size_t position = 0; position < taps.size(); ++position) {
    const auto [found, is_new] = known.try_emplace(taps[position], all.size());
    if (is_new) all.push_back({.value = taps[position]});
    all[found->second].position = position;
  }
  return all;
}

exec::SessionOptions RoundedSession::with_edits(exec::SessionOptions options, bool edits) {
  options.edits = options.edits || edits;
  return options;
}

namespace {

template <class Tap>
std::vector<std::string> values_of(const std::vector<Tap>& taps) {
  std::vector<std::string> values;
  for (const auto& tap : taps) values.push_back(tap.value);
  return values;
}

}  // namespace

RoundedSession::RoundedSession(const exec::Runtime& runtime, const onnx::Model& model, const LowValues& low,
                               const std::vector<std::string>& taps, const std::string& where,
                               exec::SessionOptions options)
    : taps_(all_taps(low, taps)),
      session_(runtime, exec::emit(model, {values_of(taps_), {}, {}}), where,
               with_edits(std::move(options), !low.empty())) {}

std::vector<data::Array> RoundedSession::run(std::span<const data::Array> inputs, const std::string& where,
                                             data::TapReceiver* receiver) {
  Receiver rounding(taps_, receiver);
  // A model of 16-bit floats may have inputs of them where the float model has float32.
  std::vector<data::Array> own;
  const auto& ports = session_.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    own.push_back(i < ports.size() ? data::as_floats(inputs[i], ports[i].type.type) : inputs[i]);
  return session_.run(own, where, taps_.empty() ? nullptr : &rounding);
}

std::vector<std::string> RoundedSession::overflows() const {
  std::vector<std::string> values;
  for (const auto& tap : taps_) {
    if (tap.overflows > 0) values.push_back(tap.value);
  }
  return values;
}

std::vector<std::string> rounding_notes(const LowValues& low, const std::vector<std::string>& overflows) {
  constexpr std::size_t kNamed = 3;
  if (low.empty()) return {};
  const auto type = low.front().second;
  const bool one = std::all_of(low.begin(), low.end(), [&](const auto& each) { return each.second == type; });
  const auto* name = !one ? "their 16-bit type" : type == FloatType::bfloat16 ? "bfloat16" : "float16";
  std::vector<std::string> notes{
      fmt::format("rounded to {} where they are made, as devices with such kernels do: {} of the quantized model; "
                  "--no-round-floats leaves that out",
                  name, count_with_noun(low.size(), "value"))};
  if (overflows.empty()) return notes;
  const std::vector named(overflows.begin(),
                          overflows.begin() + static_cast<std::ptrdiff_t>(std::min(kNamed, overflows.size())));
  notes.push_back(fmt::format("{} values pass the range of {} and become infinite: {}{}", overflows.size(), name,
                              fmt::join(named, ", "), overflows.size() > kNamed ? ", …" : ""));
  return notes;
}

}  // namespace detent::run
