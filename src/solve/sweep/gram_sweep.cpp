#include "solve/sweep/gram_sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "exec/sweep.h"
#include "graph/execution.h"
#include "quantization/blocks/block_stream.h"
#include "solve/algebra/gram.h"
#include "solve/layers/layer_solver.h"
#include "solve/sweep/finetune.h"
#include "solve/sweep/weight_solving.h"

namespace detent::solve {
namespace {

std::uint64_t square_bytes(std::int64_t rows) { return static_cast<std::uint64_t>(rows * rows) * sizeof(float); }

// Of a matrix that is being summed up, with the rows that wait to be added.
std::uint64_t sum_bytes(std::int64_t rows) {
  const auto width = static_cast<std::size_t>(rows);
  return square_bytes(rows) + tile_positions(width + 1) * width * sizeof(float);
}

std::uint64_t held_back_bytes(std::int64_t rows) {
  const auto width = static_cast<std::uint64_t>(rows);
  return width <= kMostHeldBack ? sum_bytes(rows) : 2 * kMostHeldBack * width * sizeof(float);  // while it grows
}

LayerGeometry one_output(std::int64_t rows) {
  LayerGeometry geometry;
  geometry.inputs = rows;
  geometry.outputs = 1;  // sums with targets are not wanted, and would take room for each output
  return geometry;
}

// What one value held in the samples, summed up, and in those that are held back.
class InputSums {
 public:
  InputSums(std::int64_t rows, const Kernels& kernels, std::size_t threads)
      : rows_(static_cast<std::size_t>(rows)), fitted_(std::in_place, one_output(rows), kernels, threads) {
    if (rows_ <= kMostHeldBack) held_back_.emplace(one_output(rows), kernels, threads);
  }

  void add(std::span<const std::int64_t> shape, std::span<const float> values, bool is_held_back) {
    if (!is_held_back) return fitted_->add({shape.begin(), shape.end()}, values, {});
    if (held_back_) return held_back_->add({shape.begin(), shape.end()}, values, {});
    const std::size_t free = kMostHeldBack * rows_ - held_back_rows_.size(), taken = std::min(free, values.size());
    held_back_rows_.insert(held_back_rows_.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(taken));
    if (taken == values.size()) return;
    const auto rest = values.subspan(taken);
    fitted_->add({static_cast<std::int64_t>(rest.size() / rows_), static_cast<std::int64_t>(rows_)}, rest, {});
  }

  void finish() {
    fitted_form_ = fitted_->take();
    fitted_.reset();
    if (held_back_) held_back_form_ = held_back_->take();
    held_back_.reset();
  }

  InputGrams grams() const {
    InputGrams made{gram(fitted_form_), {}};
    if (held_back_form_.positions > 0) made.held_back = gram(held_back_form_);
    if (!held_back_rows_.empty()) made.held_back = InputRows{held_back_rows_, rows_, held_back_rows_.size() / rows_};
    return made;
  }

 private:
  Gram gram(const GramForm& form) const { return {form.gram, rows_, form.positions}; }

  std::size_t rows_;
  std::optional<GramAccumulator> fitted_, held_back_;
  GramForm fitted_form_, held_back_form_;
  std::vector<float> held_back_rows_;  // instead of the sums, for long inputs
};

class SumsReceiver final : public data::TapReceiver {
 public:
  /// `observers` of the same taps, or null; which values of the listener the taps are, or kNone.
  SumsReceiver(std::vector<InputSums*> sums, calibration::Observers* observers, std::vector<int> listened,
               calibration::CacheObserver* listener)
      : sums_(std::move(sums)), observers_(observers), listened_(std::move(listened)), listener_(listener) {}
  void begin_sample(std::string origin, bool is_held_back) {
    if (observers_ != nullptr) observers_->begin_sample(origin);
    if (listener_ != nullptr) listener_->begin_sample(origin);
    origin_ = std::move(origin);
    is_held_back_ = is_held_back;
  }
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override {
    if (observers_ != nullptr) observers_->receive(tap, tensor, parallel);
    if (listener_ != nullptr && listened_[tap] != graph::kNone)
      listener_->receive(static_cast<std::size_t>(listened_[tap]), tensor, parallel);
    if (sums_[tap] == nullptr) return;  // not wanted
    const std::span values(reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float));
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }))
      throw bad_input(fmt::format("sample '{}' makes NaN or infinite values before a layer", origin_),
                      "mend the sample, or leave it out");
    sums_[tap]->add(tensor.shape, values, is_held_back_);
  }

 private:
  std::vector<InputSums*> sums_;
  calibration::Observers* observers_;
  std::vector<int> listened_;
  calibration::CacheObserver* listener_;
  std::string origin_;
  bool is_held_back_ = false;
};

class Sweep {
 public:
  Sweep(const onnx::Model& model, const graph::ValueTypes& types, const std::vector<BlockStage>& stages,
        const exec::Runtime& runtime, data::SampleSource& source, const GramSweepOptions& options,
        GramReceiver& receiver)
      : model_(model),
        stages_(stages),
        source_(source),
        options_(options),
        receiver_(receiver),
        threads_(thread_count(options.threads)),
        kernels_(cpu_kernels()),
        branch_(runtime, model, types, cuts(), options.spool, branch_options()) {
    samples_ = source.sample_count();
  }

  std::uint64_t run() {
    const bool all = observes() || options_.listener != nullptr;
    for (std::size_t s = 0; s < stages_.size() && (all || wants_any_from(s)); ++s) run_stage(s);
    if (observes()) options_.extremes->samples = samples_;
    return samples_;
  }

 private:
  std::vector<int> cuts() const {
    std::vector<int> cuts;
    for (std::size_t s = 1; s < stages_.size(); ++s) cuts.push_back(stages_[s].begin);
    return cuts;
  }

  exec::BranchOptions branch_options() {
    exec::BranchOptions made;
    made.session.threads = options_.threads;
    made.session.stop = options_.stop;
    for (const auto& stage : stages_) {
      for (const auto& input : stage.inputs) made.taps.push_back(input.value);
    }
    std::set<std::string> tapped(made.taps.begin(), made.taps.end());
    for (const auto* more : {&options_.observed, &options_.listened}) {
      for (const auto& value : *more) {
        if (tapped.insert(value).second) made.taps.push_back(value);
      }
    }
    made.batch_invariant = true;
    return made;
  }

  bool observes() const { return options_.extremes != nullptr; }

  // Of all that is tapped in a segment.
  std::unique_ptr<calibration::Observers> observers_of(const exec::Stage& segment) const {
    if (!observes()) return nullptr;
    std::vector<calibration::Observed> values;
    for (const auto& tap : segment.taps()) values.push_back({tap, ""});
    return std::make_unique<calibration::Observers>(
        values, calibration::ObserverOptions{.allow_nonfinite = true, .threads = threads_});
  }

  std::vector<int> listened_of(const exec::Stage& segment) const {
    std::vector<int> places;
    for (const auto& tap : segment.taps()) {
      const auto found = std::find(options_.listened.begin(), options_.listened.end(), tap);
      places.push_back(found == options_.listened.end() ? graph::kNone
                                                        : static_cast<int>(found - options_.listened.begin()));
    }
    return places;
  }

  bool wants_any_from(std::size_t stage) const {
    return std::any_of(stages_.begin() + static_cast<std::ptrdiff_t>(stage), stages_.end(), [&](const BlockStage& s) {
      return std::any_of(s.inputs.begin(), s.inputs.end(), [&](const auto& input) { return receiver_.wants(input); });
    });
  }

  void run_stage(std::size_t s) {
    auto segment = branch_.load(s, fmt::format("model '{}'", model_.path.string()));
    std::map<std::string, InputSums> sums;
    for (const auto& input : stages_[s].inputs) {
      if (receiver_.wants(input)) sums.try_emplace(input.value, input.rows, kernels_, threads_);
    }
    run_samples(s, segment, sums);
    branch_.finish(s);
    for (const auto& input : stages_[s].inputs) {
      auto at = sums.extract(input.value);
      if (at.empty()) continue;
      at.mapped().finish();
      receiver_.receive(input, at.mapped().grams());
    }
    failpoint("weights.stage");
  }

  void run_samples(std::size_t s, exec::Stage& segment, std::map<std::string, InputSums>& sums) {
    std::vector<InputSums*> of_taps;
    for (const auto& tap : segment.taps()) {
      const auto found = sums.find(tap);
      of_taps.push_back(found != sums.end() ? &found->second : nullptr);
    }
    const auto observers = observers_of(segment);
    SumsReceiver receiver(of_taps, observers.get(), listened_of(segment), options_.listener);
    exec::NullReceiver null;
    if (s == 0) {
      source_.rewind();
    } else {
      branch_.prefetch(s, 0, samples_);
    }
    for (std::size_t n = 0; s == 0 || n < samples_; ++n) {
      std::optional<data::Sample> sample;
      if (s == 0 && !(sample = source_.next())) {
        samples_ = n;
        break;
      }
      receiver.begin_sample(sample ? sample->origin : fmt::format("{}", n + 1), is_held_back(n));
      const auto inputs = sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>();
      const bool listens = !sums.empty() || observers || options_.listener != nullptr;
      data::TapReceiver* to = listens ? static_cast<data::TapReceiver*>(&receiver) : &null;
      segment.run(n, inputs, fmt::format("sample {}", n + 1), to);
      branch_.release(s, n, true);
      failpoint("weights.sample");
      if (options_.progress) options_.progress("samples", s * samples_ + n + 1, stages_.size() * samples_);
    }
    if (samples_ == 0) throw bad_input("there are no samples", "give at least one, or leave out --calibration-data");
    if (observers) options_.extremes->merge(observers->statistics());
  }

  bool is_held_back(std::size_t sample) const {
    const std::size_t every = std::min(kHeldBackEvery, samples_);
    return every > 1 && sample % every == every - 1;
  }

  const onnx::Model& model_;
  const std::vector<BlockStage>& stages_;
  data::SampleSource& source_;
  const GramSweepOptions& options_;
  GramReceiver& receiver_;
  std::size_t threads_;
  const Kernels& kernels_;
  exec::Branch branch_;
  std::size_t samples_ = 0;
};

// More stages, where nodes of one read more than so many bytes of weights.
std::vector<BlockStage> cut_by_weights(const onnx::Model& model, const graph::Index& index, std::uint64_t most,
                                       std::vector<BlockStage> stages) {
  std::vector<BlockStage> cut;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::size_t first = cut.size();
    const int begin = stages[s].begin;
    const int end = s + 1 < stages.size() ? stages[s + 1].begin : static_cast<int>(model.graph.nodes.size());
    cut.emplace_back().begin = begin;
    for (const int n : graph::cuts_by_constants(model, index, most, begin, end)) cut.emplace_back().begin = n;
    for (auto& input : stages[s].inputs) {
      std::size_t at = cut.size() - 1;
      while (at > first && cut[at].begin > index.producer(input.value)) --at;
      cut[at].inputs.push_back(std::move(input));
    }
  }
  return cut;
}

}  // namespace

std::vector<BlockStage> block_stages(const onnx::Model& model, const quantization::Placement& placement,
                                     const WeightsOnlyConfig& config, const GramMemory& memory) {
  const graph::Index index(model);
  std::map<std::pair<int, std::string>, BlockStage::Input> inputs;  // by where they are made
  for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
    const auto& tensor = placement.tensors[t];
    if (tensor.products.empty() || tensor.on_grids) continue;
    const auto& value = model.graph.nodes[tensor.products.front()].inputs()[0];
    if (index.initializer(value) != graph::kNone) continue;
    auto& input = inputs[{index.producer(value), value}];
    input.value = value;
    input.rows = tensor.rows;
    input.tensors.push_back(t);
  }
  const auto inside = graph::cuts_inside_bodies(model);
  std::vector<BlockStage> stages(1);
  std::uint64_t taken = 0;
  for (auto& [place, input] : inputs) {
    // Another matrix holds the factor while a weight is solved.
    const std::uint64_t bytes = sum_bytes(input.rows) + held_back_bytes(input.rows);
    const std::uint64_t needed = bytes + matrices_beside_sums(config.sparsity) * square_bytes(input.rows);
    if (needed > memory.most)
      throw resource_error(
          fmt::format("sums over what '{}' holds take {}, and {} of the memory budget are free for them", input.value,
                      format_size(needed), format_size(memory.most)),
          "raise --memory-budget, or leave out --calibration-data");
    const bool may_begin = place.first > stages.back().begin && !inside[static_cast<std::size_t>(place.first)];
    if (taken > 0 && taken + needed > memory.wanted && may_begin) {
      stages.emplace_back().begin = place.first;
      taken = 0;
    }
    taken += bytes;
    stages.back().inputs.push_back(std::move(input));
  }
  return cut_by_weights(model, index, memory.weights, std::move(stages));
}

std::uint64_t sweep_grams(const onnx::Model& model, const graph::ValueTypes& types,
                          const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                          data::SampleSource& source, const GramSweepOptions& options, GramReceiver& receiver) {
  return Sweep(model, types, stages, runtime, source, options, receiver).run();
}

std::uint64_t sweep_values(const onnx::Model& model, const graph::ValueTypes& types, const exec::Runtime& runtime,
                           data::SampleSource& source, const std::vector<int>& cuts, const GramSweepOptions& options) {
  struct NoSums final : GramReceiver {
    bool wants(const BlockStage::Input&) const override { return false; }
    void receive(const BlockStage::Input&, const InputGrams&) override {}
  } none;
  std::vector<BlockStage> stages(1);
  for (const int cut : cuts) stages.emplace_back().begin = cut;
  return Sweep(model, types, stages, runtime, source, options, none).run();
}

namespace {

constexpr std::int64_t kMostPieces = 2;
constexpr std::int64_t kMostValues = std::int64_t{1} << 21;  // of a piece, unless a column has more

// First and last columns of the pieces that stand for all.
std::vector<std::pair<std::int64_t, std::int64_t>> pieces_of(std::int64_t columns, std::int64_t rows) {
  const auto piece = std::clamp(kMostValues / std::max<std::int64_t>(rows, 1), std::int64_t{1},
                                static_cast<std::int64_t>(kColumnsTogether));
  const std::int64_t all = (columns + piece - 1) / piece, count = std::min(all, kMostPieces);
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto first = (i * all / count) * piece;
    pieces.emplace_back(first, std::min(first + piece, columns));
  }
  return pieces;
}

}  // namespace

std::vector<float> representative_columns(const onnx::Tensor& tensor, const quantization::BlockTensor& shape) {
  std::vector<float> columns;
  for (const auto& [first, last] : pieces_of(shape.columns, shape.rows)) {
    const auto at = columns.size();
    columns.resize(at + static_cast<std::size_t>((last - first) * shape.rows));
    quantization::read_columns(tensor, shape, first, last, std::span(columns).subspan(at));
  }
  return columns;
}

}  // namespace detent::solve
