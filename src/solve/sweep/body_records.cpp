#include "solve/sweep/body_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace detent::solve {
namespace {

constexpr auto kNoLayer = static_cast<std::size_t>(-1);

template <class Name>
std::vector<std::string> names_of(std::span<const TunedLayer> layers, Name name) {
  std::vector<std::string> names;
  for (const auto& layer : layers) {
    if (layer.in_body) names.push_back(name(layer));
  }
  return names;
}

std::vector<TunedLayer> layers_of(const std::vector<LayerProblem>& problems) {
  std::vector<TunedLayer> layers;
  for (const auto& problem : problems) layers.push_back(*problem.layer);
  return layers;
}

// The runtime's memory is another tensor's soon.
data::Array copy_of(const data::TensorView& tensor) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
  return {tensor.type, {tensor.shape.begin(), tensor.shape.end()}, *bytes, bytes};
}

}  // namespace

std::vector<std::string> body_targets(std::span<const TunedLayer> layers) {
  return names_of(layers, [](const TunedLayer& layer) { return layer.target; });
}

std::vector<std::string> body_readers(std::span<const TunedLayer> layers, const onnx::Model& model) {
  return names_of(layers, [&](const TunedLayer& layer) {
    return model.graph.nodes[static_cast<std::size_t>(layer.quantized_node)].outputs()[0];
  });
}

LayerTaps::LayerTaps(const exec::Stage& stage, const std::vector<std::string>& names, Receive receive)
    : receive_(std::move(receive)) {
  std::unordered_map<std::string, std::size_t> layers;
  for (std::size_t i = 0; i < names.size(); ++i) layers.emplace(names[i], i);
  for (const auto* taps : {&stage.taps(), &stage.readers()}) {
    for (const auto& tap : *taps) {
      const auto found = layers.find(tap);
      layer_of_.push_back(found == layers.end() ? kNoLayer : found->second);
    }
  }
}

void LayerTaps::receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) {
  if (layer_of_[tap] != kNoLayer) receive_(layer_of_[tap], tensor);
}

BodyPass::BodyPass(exec::Stage& float_stage, exec::Stage& quantized_stage, const onnx::Model& quantized,
                   std::vector<LayerProblem>& problems, LayerTuner& tuner, store::Spool& spool)
    : float_stage_(float_stage),
      quantized_stage_(quantized_stage),
      problems_(problems),
      tuner_(tuner),
      spool_(spool),
      of_float_(float_stage, body_targets(layers_of(problems)),
                [this](std::size_t layer, const data::TensorView& tensor) { keep(layer, tensor); }),
      of_quantized_(quantized_stage, body_readers(layers_of(problems), quantized),
                    [this](std::size_t layer, const data::TensorView& tensor) { pair(layer, tensor); }) {
  for (std::size_t i = 0; i < problems.size(); ++i)
    waiting_.push_back({spool.open(fmt::format("body-{}", i)), 0, 0, {}});
}

BodyPass::~BodyPass() {
  for (const auto& waiting : waiting_) spool_.close(waiting.lane);
}

void BodyPass::run(std::size_t sample, std::span<const data::Array> graph_inputs, const std::string& where) {
  sample_ = sample;
  if (needs_float()) float_stage_.run(sample, graph_inputs, where, &of_float_);
  quantized_stage_.run(sample, graph_inputs, where, &of_quantized_);
  for (auto& waiting : waiting_) {  // those without a partner
    for (; waiting.taken < waiting.put; ++waiting.taken) spool_.release(waiting.lane, waiting.taken);
  }
}

bool BodyPass::needs_float() const {
  return is_held_back(sample_) || std::any_of(problems_.begin(), problems_.end(),
                                              [&](const auto& problem) { return tuner_.needs_targets(problem); });
}

// With a drop ratio the input comes first, and its target behind it.
void BodyPass::keep(std::size_t layer, const data::TensorView& tensor) {
  auto& waiting = waiting_[layer];
  waiting.begun.push_back(copy_of(tensor));
  if (waiting.begun.size() < tuner_.float_values()) return;
  spool_.put(waiting.lane, waiting.put++, std::exchange(waiting.begun, {}));
}

std::optional<store::Record> BodyPass::next_of(Waiting& waiting) {
  if (waiting.taken == waiting.put) return std::nullopt;
  auto record = spool_.get(waiting.lane, waiting.taken);
  if (!record)
    throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
  spool_.release(waiting.lane, waiting.taken++);
  return record;
}

void BodyPass::pair(std::size_t layer, const data::TensorView& tensor) {
  auto& problem = problems_[layer];
  store::Record record{copy_of(tensor)};
  auto partner = next_of(waiting_[layer]);
  if (tensor.bytes.empty()) return;
  if (partner && tuner_.agree(problem, record[0], *partner)) {
    record.push_back(std::move(partner->back()));
    if (partner->size() > 1) record.push_back(std::move(partner->front()));
  } else if (is_held_back(sample_) || tuner_.needs_targets(problem)) {
    return;
  }
  tuner_.take(problem, sample_, std::move(record));
}

}  // namespace detent::solve
