#include "pipeline/block_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "data/sample.h"
#include "exec/sweep.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "onnx/packed_numbers.h"
#include "onnx/write.h"
#include "pipeline/deployed.h"
#include "planning/memory.h"
#include "profile/meters.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/emitters.h"
#include "remedies/trial_model.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/pairing.h"
#include "run/comparison/proof.h"
#include "run/context.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/sweep_setup.h"
#include "solve/sweep/block_weights.h"

namespace detent::pipeline {

namespace {

using quantization::BlockTensor;

constexpr std::int64_t kStripeValues = std::int64_t{1} << 22;

// store(i, value) takes element i of the tensor.
template <class Store>
void round_to_nearest(const onnx::Tensor& tensor, const BlockTensor& shape, const Store& store) {
  const auto rows = shape.rows, stripe = std::max<std::int64_t>(1, kStripeValues / rows);
  for (std::int64_t first = 0; first < shape.columns; first += stripe) {
    const auto last = std::min(first + stripe, shape.columns);
    std::vector<float> columns(static_cast<std::size_t>((last - first) * rows));
    quantization::read_columns(tensor, shape, first, last, columns);
    quantization::dequantize(quantization::nearest(columns, rows, shape.format), columns);
    for (std::int64_t k = 0; k < rows; ++k) {
      for (std::int64_t n = first; n < last; ++n) {
        store(static_cast<std::size_t>(shape.by_columns ? n * rows + k : k * shape.columns + n),
              columns[static_cast<std::size_t>((n - first) * rows + k)]);
      }
    }
  }
}

void round_to_nearest(const onnx::Tensor& tensor, const BlockTensor& shape, std::span<std::byte> passed_on) {
  const auto put = [&](std::size_t i, auto value) {
    std::memcpy(passed_on.data() + i * sizeof(value), &value, sizeof(value));
  };
  switch (tensor.type) {
    case onnx::DataType::float32: return round_to_nearest(tensor, shape, put);
    case onnx::DataType::float16:
      return round_to_nearest(tensor, shape, [&](std::size_t i, float v) { put(i, onnx::to_float16(v)); });
    case onnx::DataType::bfloat16:
      return round_to_nearest(tensor, shape, [&](std::size_t i, float v) { put(i, onnx::to_bfloat16(v)); });
    default: throw internal_error("a weight in blocks is no float");
  }
}

// Rounds the weights that are switched on, where they come into the graph.
class WeightRounder final : public data::TapReceiver {
 public:
  WeightRounder(const onnx::Model& model, const quantization::Placement& placement,
                const std::vector<std::string>& taps)
      : model_(model), placement_(placement), tensors_(taps.size()) {
    std::map<std::string, std::size_t> tap_of;
    for (std::size_t i = 0; i < taps.size(); ++i) tap_of[taps[i]] = i;
    for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
      const auto found = tap_of.find(model.graph.initializers[placement.tensors[t].initializer].name);
      if (found != tap_of.end()) tensors_[found->second].push_back(t);
    }
  }

  void switch_on(std::vector<std::size_t> tensors) { on_ = {tensors.begin(), tensors.end()}; }

  void receive(std::size_t tap, const data::TensorView& view, const data::ParallelFor&) override {
    for (const auto t : tensors_[tap]) {
      if (!on_.contains(t)) continue;
      const auto& shape = placement_.tensors[t];
      round_to_nearest(model_.graph.initializers[shape.initializer], shape, view.passed_on);
      return;
    }
  }

 private:
  const onnx::Model& model_;
  const quantization::Placement& placement_;
  std::vector<std::vector<std::size_t>> tensors_;  // by tap
  std::set<std::size_t> on_;
};

std::vector<std::string> taps_of(const onnx::Model& model, const quantization::Placement& placement,
                                 std::span<const std::vector<std::size_t>> groups) {
  std::set<std::string> names;
  for (const auto& group : groups) {
    for (const auto t : group) names.insert(model.graph.initializers[placement.tensors[t].initializer].name);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> outputs_of(const onnx::Model& model, const graph::ValueTypes& types) {
  const auto all = remedies::judged_values(model, types);
  std::vector<std::string> others;
  std::remove_copy_if(all.begin(), all.end(), std::back_inserter(others), run::is_cache_output);
  return others.empty() ? all : others;
}

// For each group of tensors of the placement the error of the worst output if they alone are rounded to the nearest, in
// their formats: the sum of squared errors over that of squares, over the first `samples` samples. The caches of
// decoders (outputs named "present…") do not count where there are other outputs. The model runs once for each sample
// and group; results do not depend on threads.
std::vector<double> output_errors(const run::Context& context, const onnx::Model& model, const graph::ValueTypes& types,
                                  const quantization::Placement& placement,
                                  std::span<const std::vector<std::size_t>> groups, data::SampleSource& source,
                                  std::size_t samples) {
  const auto outputs = outputs_of(model, types);
  exec::BranchOptions options;
  options.session = {.tuning = exec::SessionMode::lean,
                     .threads = context.threads,
                     .stop = context.stop,
                     .edits = true,
                     .place = context.place};
  options.taps = taps_of(model, placement, groups);
  exec::Branch branch(context.runtime, model, types, {}, nullptr, options);
  auto stage = branch.load(0, fmt::format("model '{}'", model.path.string()), outputs);
  WeightRounder rounder(model, placement, stage.taps());
  std::vector<std::vector<run::PairSums>> sums(groups.size(), std::vector<run::PairSums>(outputs.size()));
  source.rewind();
  for (std::size_t s = 0; s < samples; ++s) {
    const auto sample = source.next();
    if (!sample) break;
    rounder.switch_on({});
    const auto exact = stage.run(s, sample->inputs, sample->origin, &rounder);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      rounder.switch_on(groups[g]);
      const auto found = stage.run(s, sample->inputs, sample->origin, &rounder);
      for (std::size_t i = 0; i < outputs.size(); ++i) sums[g][i].add(exact[i], found[i]);
      if (context.progress) context.progress("sensitivity", s * groups.size() + g + 1, samples * groups.size());
    }
  }
  std::vector<double> errors;
  for (const auto& of_outputs : sums) {
    double worst = 0;
    for (const auto& sum : of_outputs) worst = std::max(worst, sum.signal > 0 ? sum.noise / sum.signal : 0);
    errors.push_back(worst);
  }
  return errors;
}

// Beside what is there: the runtime, the model in one piece, a copy of the weight that is rounded, and its values on
// their way.
std::uint64_t memory_of_errors(const onnx::Model& model, const quantization::Placement& placement) {
  // Of a stripe: the columns, their integers and scales, what becomes of them; and as much that earlier work has left.
  constexpr std::uint64_t kCopies = 6;
  constexpr std::uint64_t kStripe = kStripeValues * sizeof(float);
  std::uint64_t largest = 0;
  for (const auto& tensor : placement.tensors)
    largest = std::max(largest, model.graph.initializers[tensor.initializer].data.size());
  return planning::kProcess + run::size_on_disk(model) + largest + kCopies * std::min(largest, kStripe);
}

using quantization::BitOption;
using quantization::Placement;

constexpr std::size_t kSensitivitySamples = 4;

// A weight and the bits that it may have.
struct Candidate {
  std::set<int> bits;
  bool is_fixed = false;              // by node_bits
  std::map<int, std::int64_t> bytes;  // that it takes beyond those in float
};

quantization::Assignment unsolved(const onnx::Model& model, const Placement& placement,
                                  const WeightsOnlyConfig& config) {
  quantization::Assignment assignment;
  assignment.placement = placement;
  assignment.blocks = {.form = config.form, .accuracy_level = config.accuracy_level};
  for (const auto& tensor : placement.tensors) {
    const auto none = [](std::span<const float>, std::int64_t) -> quantization::BlockWeight {
      throw internal_error("weights are asked for where sizes are wanted");
    };
    assignment.blocks.weights.emplace_back(model.graph.initializers[tensor.initializer], tensor, none, 1);
  }
  return assignment;
}

}  // namespace

class BitsPlanner::Impl {
 public:
  Impl(const onnx::Model& model, const QuantizeOptions& options, const std::optional<PlanSamples>& samples)
      : model_(model),
        options_(options),
        samples_(samples),
        named_(quantization::named_bits(model, options.weights_only)) {
    find_candidates();
    find_groups();
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      for (const int bits : candidates_[t].bits) candidates_[t].bytes[bits] = more_bytes(t, bits);
    }
    find_smallest();
  }

  std::uint64_t smallest() const { return size_of(smallest_); }
  std::uint64_t in_float() const { return fixed_bytes_ > 0 ? static_cast<std::uint64_t>(fixed_bytes_) : 0; }

  std::uint64_t uniform() const { return size_of_nodes(std::vector<int>(model_.graph.nodes.size(), base_bits())); }

  // Before anything is measured.
  void check(std::uint64_t max_size) const {
    if (smallest() > max_size)
      throw usage_error(fmt::format("--max-size {}: with the fewest bits the model takes {}", format_size(max_size),
                                    format_size(smallest())),
                        "give more, or larger blocks, or name more with --op-types");
    if (in_float() <= max_size && !any_fixed())
      throw usage_error(
          fmt::format("--max-size {}: in float the model takes {}", format_size(max_size), format_size(in_float())),
          "give less, or leave it out");
  }

  void measure() {
    find_errors();
    for (std::size_t g = 0; g < groups_.size(); ++g) choices_.push_back(options_of(g));
  }

  PlannedBits within(std::uint64_t max_size) const {
    const auto chosen = choose(max_size);
    PlannedBits planned{nodes_of(chosen), {}};
    planned.plan = {.max_size = max_size, .size = size_of(chosen), .error = 0, .weights = {}};
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      planned.plan.weights.push_back(told(t, chosen[group_of_[t]]));
      planned.plan.error += planned.plan.weights.back().error;
    }
    return planned;
  }

 private:
  const WeightsOnlyConfig& blocks() const { return options_.weights_only; }
  int base_bits() const { return static_cast<int>(blocks().bits); }

  // A weight may have the bits with which the same nodes would read it.
  void find_candidates() {
    std::map<std::pair<std::size_t, bool>, std::size_t> known;
    for (const int bits : {4, 8, 2}) {
      if (bits == 2 && blocks().form == WeightForm::qdq && model_.opset() < quantization::opset_of_blocks({.bits = 2}))
        continue;
      const std::vector<int> everywhere(model_.graph.nodes.size(), bits);
      for (auto& tensor : quantization::place_blocks(model_, options_.config, blocks(), everywhere).tensors) {
        const auto [found, is_new] = known.try_emplace({tensor.initializer, tensor.by_columns}, all_.tensors.size());
        if (is_new) {
          all_.tensors.push_back(tensor);
          candidates_.emplace_back();
        } else if (all_.tensors[found->second].readers() != tensor.readers()) {
          continue;
        }
        candidates_[found->second].bits.insert(tensor.format.bits);
      }
    }
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      const auto nodes = all_.tensors[t].readers();
      auto& candidate = candidates_[t];
      candidate.is_fixed =
          std::any_of(nodes.begin(), nodes.end(), [&](std::size_t n) { return named_[n].has_value(); });
      all_.tensors[t].format.bits = candidate.bits.contains(base_bits()) ? base_bits() : *candidate.bits.begin();
    }
  }

  // Weights whose products read one value, and those of one node.
  void find_groups() {
    const graph::Index index(model_);
    std::map<std::string, std::size_t> by_value;
    std::map<std::size_t, std::size_t> by_node;
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      const auto& tensor = all_.tensors[t];
      std::size_t group = groups_.size();
      if (!candidates_[t].is_fixed && !tensor.products.empty()) {
        const auto& value = model_.graph.nodes[tensor.products.front()].inputs()[0];
        group = by_value.try_emplace(value, group).first->second;
      } else if (!candidates_[t].is_fixed && !tensor.others.empty()) {
        group = by_node.try_emplace(tensor.others.front().first, group).first->second;
      }
      if (group == groups_.size()) groups_.emplace_back();
      groups_[group].push_back(t);
      group_of_.push_back(group);
    }
  }

  // Of the weight alone: a model of it and the nodes that read it is enough to know.
  std::int64_t more_bytes(std::size_t t, int bits) const {
    onnx::Model alone;
    alone.path = model_.path;
    alone.ir_version = model_.ir_version;
    alone.opsets = model_.opsets;
    auto tensor = all_.tensors[t];
    alone.graph.initializers = {model_.graph.initializers[tensor.initializer]};
    tensor.initializer = 0;
    tensor.format.bits = bits;
    tensor.stays = false;
    const auto renumber = [&](std::size_t& node) {
      alone.graph.nodes.push_back(model_.graph.nodes[node]);
      node = alone.graph.nodes.size() - 1;
    };
    for (auto& node : tensor.products) renumber(node);
    for (auto& node : tensor.tables) renumber(node);
    for (auto& [node, input] : tensor.others) renumber(node);
    std::set<std::string> known{alone.graph.initializers.front().name};
    for (const auto& node : alone.graph.nodes) {
      for (const auto& input : node.inputs()) {
        if (!input.empty() && known.insert(input).second)
          alone.graph.inputs.push_back(onnx::make_value_info(input, onnx::DataType::float32, std::nullopt));
      }
    }
    Placement placement;
    placement.tensors = {tensor};
    const auto before = file_size(alone);
    const auto assignment = unsolved(alone, placement, blocks());
    const auto after = file_size(quantization::emit_blocks({std::move(alone)}, assignment).model);
    return static_cast<std::int64_t>(after - before) +
           (all_.tensors[t].stays ? static_cast<std::int64_t>(float_bytes(t)) : 0);
  }

  std::uint64_t file_size(const onnx::Model& model) const {
    const auto sizes =
        onnx::written_sizes(model, options_.output, {options_.external_data_threshold, options_.external_data_suffix});
    return sizes.model_bytes + sizes.data_bytes;
  }

  void find_errors() {
    const auto threads = thread_count(options_.threads);
    errors_.resize(all_.tensors.size());
    if (samples_) {
      check_memory();
      find_gram_errors();
      sensitivities_ = output_errors(samples_->context, model_, samples_->types, all_, groups_, samples_->source,
                                     kSensitivitySamples);
    }
    std::size_t done = 0;
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      if (options_.stop.stop_requested()) throw interrupted();
      if (!errors_[t].of_bits.empty()) continue;
      const std::vector<int> bits(candidates_[t].bits.begin(), candidates_[t].bits.end());
      errors_[t] = solve::bit_errors(model_.graph.initializers[all_.tensors[t].initializer], all_.tensors[t], bits,
                                     blocks().method, threads);
      if (options_.progress) options_.progress("errors of bits", ++done, all_.tensors.size());
    }
  }

  // Sensitivity is measured with the model in one piece.
  void check_memory() const {
    const auto needed = profile::memory_now().anonymous + memory_of_errors(model_, all_);
    if (needed > samples_->memory)
      throw resource_error(
          fmt::format("the choice of bits measures the whole model at once, which takes about {}, and the memory "
                      "budget is {}",
                      format_size(needed), format_size(samples_->memory)),
          "raise --memory-budget, or leave out --calibration-data");
  }

  void find_gram_errors() {
    std::vector<solve::BitQuestion> questions;
    for (std::size_t t = 0; t < all_.tensors.size(); ++t)
      questions.push_back({t, {candidates_[t].bits.begin(), candidates_[t].bits.end()}});
    const auto stages = solve::block_stages(model_, all_, blocks(), samples_->memory_for_sums);
    std::unique_ptr<store::Spool> spool;
    if (stages.size() > 1)
      spool = run::make_spool(samples_->context, planning::split_budget(samples_->memory_for_sums.wanted / 2, 0));
    errors_ = solve::bit_errors(
        model_, samples_->types, all_, questions, stages, samples_->context.runtime, samples_->source, blocks().method,
        {.threads = options_.threads, .spool = spool.get(), .progress = options_.progress, .stop = options_.stop});
  }

  // The error that one weight adds with so many bits.
  double error_of(std::size_t t, int bits) const {
    if (bits == 0) return 0;
    const double share = errors_[t].of_bits.at(bits);
    if (!samples_) return share;
    const auto group = group_of_[t];
    double nearest = 0;
    for (const auto other : groups_[group]) nearest += errors_[other].nearest;
    return nearest > 0 ? sensitivities_[group] * share / nearest : 0;
  }

  std::uint64_t float_bytes(std::size_t t) const {
    return model_.graph.initializers[all_.tensors[t].initializer].data.size();
  }

  // Those that all weights of a group may have; 0: float.
  std::set<int> bits_of(std::size_t g) const {
    std::set<int> bits = candidates_[groups_[g].front()].bits;
    for (const auto t : groups_[g]) {
      std::set<int> both;
      std::set_intersection(bits.begin(), bits.end(), candidates_[t].bits.begin(), candidates_[t].bits.end(),
                            std::inserter(both, both.begin()));
      bits = std::move(both);
    }
    if (!candidates_[groups_[g].front()].is_fixed) bits.insert(0);
    return bits;
  }

  // Beyond those in float.
  std::int64_t bytes_of(std::size_t g, int bits) const {
    std::int64_t sum = 0;
    for (const auto t : groups_[g]) {
      if (bits != 0) sum += candidates_[t].bytes.at(bits);
    }
    return sum;
  }

  std::vector<BitOption> options_of(std::size_t g) const {
    std::vector<BitOption> options;
    for (const int bits : bits_of(g)) {
      options.push_back({.bits = bits, .bytes = bytes_of(g, bits), .error = 0});
      for (const auto t : groups_[g]) options.back().error += error_of(t, bits);
    }
    return options;
  }

  void find_smallest() {
    std::int64_t bytes = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto bits = bits_of(g);
      smallest_.push_back(
          *std::min_element(bits.begin(), bits.end(), [&](int a, int b) { return bytes_of(g, a) < bytes_of(g, b); }));
      bytes += bytes_of(g, smallest_.back());
    }
    fixed_bytes_ = static_cast<std::int64_t>(size_of(smallest_)) - bytes;
  }

  bool any_fixed() const {
    return std::any_of(candidates_.begin(), candidates_.end(), [](const Candidate& c) { return c.is_fixed; });
  }

  // Bits of each group. What nodes and names take depends on the choice by a little: where the result is too large,
  // less is left to choose with, and ever less where many choices are too large by a little.
  std::vector<int> choose(std::uint64_t max_size) const {
    std::int64_t left = static_cast<std::int64_t>(max_size) - fixed_bytes_;
    for (int attempt = 0; attempt < 24; ++attempt) {
      const auto found = quantization::choose_bits(choices_, left);
      if (!found) break;
      std::vector<int> chosen;
      for (std::size_t g = 0; g < choices_.size(); ++g) chosen.push_back(choices_[g][(*found)[g]].bits);
      const auto size = size_of(chosen);
      if (size <= max_size) return chosen;
      left -= static_cast<std::int64_t>(size - max_size) << attempt;
    }
    return smallest_;
  }

  std::vector<int> nodes_of(const std::vector<int>& of_groups) const {
    std::vector<int> bits(model_.graph.nodes.size(), base_bits());
    for (std::size_t t = 0; t < all_.tensors.size(); ++t) {
      for (const auto n : all_.tensors[t].readers()) bits[n] = of_groups[group_of_[t]];
    }
    return bits;
  }

  std::uint64_t size_of(const std::vector<int>& of_groups) const { return size_of_nodes(nodes_of(of_groups)); }

  std::uint64_t size_of_nodes(const std::vector<int>& of_nodes) const {
    const auto placement = quantization::place_blocks(model_, options_.config, blocks(), of_nodes);
    auto emitted = quantization::emit_blocks({model_}, unsolved(model_, placement, blocks())).model;
    emitted.set_producer("detent", DETENT_VERSION);
    return file_size(emitted);
  }

  std::uint64_t stored_bytes(std::size_t t, int bits) const {
    const auto in_float = float_bytes(t);
    if (bits == 0) return in_float;
    return static_cast<std::uint64_t>(candidates_[t].bytes.at(bits)) + (all_.tensors[t].stays ? 0 : in_float);
  }

  PlannedWeight told(std::size_t t, int bits) const {
    const auto& reader = model_.graph.nodes[all_.tensors[t].readers().front()];
    return {.name = model_.graph.initializers[all_.tensors[t].initializer].name,
            .node = reader.id(),
            .bits = bits,
            .bytes = stored_bytes(t, bits),
            .error = error_of(t, bits)};
  }

  const onnx::Model& model_;
  const QuantizeOptions& options_;
  const std::optional<PlanSamples>& samples_;
  std::vector<std::optional<int>> named_;
  Placement all_;  // every weight that may be stored in blocks
  std::vector<Candidate> candidates_;
  std::vector<std::vector<std::size_t>> groups_;
  std::vector<std::size_t> group_of_;  // by tensor
  std::vector<int> smallest_;          // bits of each group
  std::int64_t fixed_bytes_ = 0;       // of the model with all weights in float
  std::vector<solve::BitErrors> errors_;
  std::vector<double> sensitivities_;            // by group: the error of the outputs with nearest rounding
  std::vector<std::vector<BitOption>> choices_;  // by group; of measure()
};

BitsPlanner::BitsPlanner(const onnx::Model& model, const QuantizeOptions& options,
                         const std::optional<PlanSamples>& samples)
    : impl_(std::make_unique<Impl>(model, options, samples)) {}
BitsPlanner::~BitsPlanner() = default;

std::uint64_t BitsPlanner::smallest() const { return impl_->smallest(); }
std::uint64_t BitsPlanner::in_float() const { return impl_->in_float(); }
std::uint64_t BitsPlanner::uniform() const { return impl_->uniform(); }
void BitsPlanner::check(std::uint64_t max_size) const { impl_->check(max_size); }
void BitsPlanner::measure() { impl_->measure(); }
PlannedBits BitsPlanner::within(std::uint64_t max_size) const { return impl_->within(max_size); }

double BitsTarget::measure(onnx::Model model, const std::filesystem::path& path, const exec::Runtime& runtime,
                           data::SampleSource& samples) {
  if (options_.accuracy.metric != AccuracyMetric::command)
    return run::metric_value(fidelity_of(std::move(model), path, options_, runtime, samples), options_.accuracy.metric);
  model.set_producer("detent", DETENT_VERSION);
  return run::measure_candidate(model, path, options_, [&](const auto& file) {
    return run::share_of_float_score(options_.accuracy, options_.model, file, float_score_, options_.stop);
  });
}

double BitsTarget::loss_of(double value) const {
  if (options_.accuracy.metric == AccuracyMetric::sqnr) return std::pow(10, -value / 10);
  if (options_.accuracy.metric == AccuracyMetric::perplexity) return std::max(0.0, -std::log(value));
  return std::max(0.0, 1 - value);
}

Error BitsTarget::out_of_reach(const std::vector<MeasuredSize>& tried) const {
  const auto& best =
      *std::max_element(tried.begin(), tried.end(), [](const auto& a, const auto& b) { return a.value < b.value; });
  return bad_input(
      fmt::format("--accuracy-target: no choice of bits that was tried reaches {}; the best comes to {:.6g} with {}",
                  *options_.accuracy.target, best.value, format_size(best.size)),
      "lower the target, or give smaller blocks with --block-size");
}

}  // namespace detent::pipeline
