#include "tuning/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/parallel.h"
#include "data/floats.h"
#include "data/sample_inputs.h"
#include "exec/sweep.h"
#include "finetune/column_form.h"
#include "finetune/kernels.h"
#include "finetune/layer_solver.h"
#include "finetune/own_targets.h"
#include "finetune/scale_fit.h"
#include "finetune/solver.h"
#include "finetune/streamed.h"
#include "tuning/cost.h"
#include "tuning/layer_state.h"
#include "tuning/solved_layers.h"
#include "tuning/steps.h"
#include "tuning/tuned_layer.h"

namespace detent::tuning {
namespace {

using Clock = std::chrono::steady_clock;

/// Inputs and targets of one layer for some of the samples, in the spool.
class StoredSamples : public finetune::LayerSamples {
 public:
  StoredSamples(store::Spool& spool, const std::string& name) : spool_(spool), lane_(spool.open(name)) {}
  ~StoredSamples() override {
    ahead_.clear();  // which waits for them
    spool_.close(lane_);
  }
  StoredSamples(const StoredSamples&) = delete;
  StoredSamples& operator=(const StoredSamples&) = delete;

  void add(store::Record record) { spool_.put(lane_, count_++, std::move(record)); }
  std::size_t count() const override { return count_; }
  finetune::SampleRef get(std::size_t i) override {
    auto record = take(i);
    if (!record)
      throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
    const auto held = std::make_shared<store::Record>(std::move(*record));
    const auto& arrays = *held;
    return {arrays[0].shape, data::floats(arrays[0]),
            arrays.size() > 2 ? data::floats(arrays[2]) : std::span<const float>(), data::floats(arrays[1]), held};
  }

  std::optional<store::RestingRecord> resting(std::size_t i) const override { return spool_.resting(lane_, i); }

  /// Those that are not read yet are now, each by a thread of its own.
  void announce(std::span<const std::size_t> coming) override {
    for (const std::size_t i : coming) {
      if (ahead_.size() >= coming.size() || ahead_.contains(i)) continue;
      ahead_.emplace(i, std::async(std::launch::async, [this, i] { return spool_.get(lane_, i); }));
    }
  }

 private:
  std::optional<store::Record> take(std::size_t i) {
    const auto found = ahead_.find(i);
    if (found == ahead_.end()) return spool_.get(lane_, i);
    auto reading = std::move(found->second);
    ahead_.erase(found);
    return reading.get();
  }

  store::Spool& spool_;
  store::Spool::Lane lane_;
  std::size_t count_ = 0;
  std::map<std::size_t, std::future<std::optional<store::Record>>> ahead_;
};

/// A layer at work: its samples go where its form wants them.
struct Work {
  const TunedLayer* layer = nullptr;
  finetune::LayerGeometry geometry;
  bool streamed = false;
  finetune::QuantizedWeights weights;
  std::vector<float> bias;
  double columns_each = 0;  // for each weight of an output
  bool needs_targets = true;
  std::optional<finetune::FormAccumulator> sums;
  std::optional<finetune::AnyForm> form;  // what they come to
  std::unique_ptr<StoredSamples> stored;
  std::unique_ptr<StoredSamples> held_back;
};

std::vector<TunedLayer> some(std::vector<TunedLayer> layers) {
  if (layers.empty()) {
    throw usage_error("--finetune: no selected layer has quantized weights",
                      "change --finetune-nodes or --finetune-op-types");
  }
  return layers;
}

class Tuner {
 public:
  Tuner(const onnx::Model& float_model, const graph::ValueTypes& float_types, onnx::Model& quantized,
        std::vector<TunedLayer> layers, const exec::Runtime& runtime, data::SampleSource& source,
        const FinetuneOptions& options, std::vector<std::string>& notes)
      : float_(float_model),
        quantized_(quantized),
        source_(source),
        options_(options),
        notes_(notes),
        kernels_(finetune::cpu_kernels()),
        solver_(options.device.is_cpu() ? finetune::cpu_solver(kernels_)
                                        : finetune::cuda_solver(options.device, kernels_, options.activity)),
        layers_(some(std::move(layers))),
        steps_(steps_of(layers_, float_model, quantized, std::min(options.memory.together, solver_->sums_budget()))),
        needs_targets_(layers_needing_targets(float_types)),
        quantized_types_(exec::probe_values(runtime, quantized)),
        solved_(options.directory),
        float_branch_(runtime, float_model, float_types, float_cuts(), &options.spool, branch_options("float-")),
        quantized_branch_(runtime, quantized, quantized_types_, quantized_cuts(), &options.spool,
                          branch_options("quantized-")) {}

  std::vector<LayerTuning> run() {
    for (std::size_t step = 0; step < steps_.size(); ++step) run_step(step);
    for (auto& note : solver_->notes()) notes_.push_back(std::move(note));
    return std::move(results_);
  }

 private:
  exec::BranchOptions branch_options(const char* name) {
    return {.session = {exec::Tuning::lean, options_.threads, options_.stop, true, {}},
            .taps = {},
            .batch_invariant = false,
            .name = name,
            .inputs_of = [this](std::size_t sample) { return data::sample_inputs(source_, sample); }};
  }

  // Behind the last target of each step, and before its first layer.
  std::vector<int> float_cuts() const {
    auto cuts = float_ends(layers_, steps_);
    if (cuts.back() == static_cast<int>(float_.graph.nodes.size())) cuts.pop_back();
    return cuts;
  }
  std::vector<int> quantized_cuts() const { return quantized_ends(layers_, steps_); }

  /// Where the float model's outputs have no share in a layer's targets, only samples that judge it need them. By
  /// shapes and options alone; a layer whose input's shape is not static counts as needing them.
  std::vector<bool> layers_needing_targets(const graph::ValueTypes& float_types) const {
    std::vector<bool> needing;
    for (const auto& layer : layers_) {
      bool needs = true;
      finetune::Shape shape;  // stays empty where the runtime does not know the rank: it tells of no axes then
      if (graph::static_bytes(float_types, layer.float_input)) {
        for (const auto& dim : *float_types.at(layer.float_input).shape) shape.push_back(dim.value);
      }
      if (aims_at_own_outputs() && !shape.empty()) {
        const auto columns = finetune::columns_each(geometry_of(float_, layer, shape), shape, expected_samples());
        needs = finetune::float_share(columns) > 0;
      }
      needing.push_back(needs);
    }
    return needing;
  }
  std::uint64_t expected_samples() const { return std::max<std::uint64_t>(source_.file_count(), 1); }

  /// Whether the sample goes through the step's segment of the float model: also where only a later step needs it.
  bool runs_float(std::size_t step, std::size_t sample) const {
    const auto first = needs_targets_.begin() + static_cast<std::ptrdiff_t>(steps_[step].layers.front());
    return is_held_back(sample) || std::find(first, needs_targets_.end(), true) != needs_targets_.end();
  }

  bool needs_float_input() const { return options_.config.drop_ratio < 1; }

  void run_step(std::size_t step) {
    auto stored = solved_.load(step);
    std::vector<Work> works;
    for (const auto i : steps_[step].layers) works.emplace_back().layer = &layers_[i];
    std::vector<std::string> targets, inputs;
    for (const auto& work : works) {
      targets.push_back(work.layer->target);
      inputs.push_back(work.layer->input);
    }
    if (needs_float_input()) {
      for (const auto& work : works) targets.push_back(work.layer->float_input);
    }
    name_work(works.size() == 1 ? works[0].layer->name
                                : fmt::format("{} and {} more", works[0].layer->name, works.size() - 1));
    sweep(step, works, targets, inputs, !stored);
    float_branch_.finish(step);
    quantized_branch_.finish(step);
    if (!stored) {
      // All of them first: sums on a device have to make room for what solves the first layer.
      for (auto& work : works) {
        if (work.sums) work.form = work.sums->take();
        work.sums.reset();
      }
      std::vector<SolvedLayer> solved;
      for (auto& work : works) solved.push_back(solve(work));
      solved_.save(step, solved);
      failpoint("finetune.solved");
      stored = solved_.load(step);
      for (const auto& work : works) std::filesystem::remove(state_file(work));
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto& layer = stored->at(i);
      apply(*works[i].layer, layer);
      results_.push_back(layer.tuning);
      if (options_.solved) options_.solved(layer.tuning);
    }
    done_ += works.size();
    report();
  }

  // All samples through the step's segment of both models.
  void sweep(std::size_t step, std::vector<Work>& works, const std::vector<std::string>& targets,
             const std::vector<std::string>& inputs, bool keep) {
    auto float_stage = float_branch_.load(step, "float model", targets);
    auto quantized_stage = quantized_branch_.load(step, "quantized model", inputs);
    if (step == 0) {
      source_.rewind();
    } else {
      float_branch_.announce(step, 0, samples_);
    }
    for (std::size_t s = 0; step == 0 || s < samples_; ++s) {
      std::optional<data::Sample> sample;
      if (step == 0 && !(sample = source_.next())) {
        samples_ = s;
        break;
      }
      const auto graph_inputs = sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>();
      const std::string where = fmt::format("fine-tuning, sample {}", s + 1);
      std::vector<data::Array> float_values;
      if (runs_float(step, s)) float_values = float_stage.run(s, graph_inputs, where, nullptr);
      auto quantized_values = quantized_stage.run(s, graph_inputs, where, nullptr);
      float_branch_.release(step, s, true);
      quantized_branch_.release(step, s, true);
      if (keep) {
        for (std::size_t i = 0; i < works.size(); ++i) {
          store::Record record;
          record.push_back(quantized_values[i]);
          if (!float_values.empty()) record.push_back(float_values[i]);
          if (needs_float_input()) record.push_back(float_values[works.size() + i]);
          take(works[i], s, std::move(record));
        }
      }
      failpoint("finetune.sample");
      report();
    }
  }

  static bool is_held_back(std::size_t sample) { return sample % kHeldBackEvery == kHeldBackEvery - 1; }

  void take(Work& work, std::size_t sample, store::Record record) {
    if (sample == 0) begin(work, record);
    if (is_held_back(sample)) {
      work.held_back->add(std::move(record));
    } else if (work.streamed) {
      if (aims_at_own_outputs()) record = {record[0], own_targets(work, record)};
      work.stored->add(std::move(record));
    } else {
      const auto targets = work.needs_targets ? data::floats(record[1]) : std::span<const float>();
      work.sums->add(record[0].shape, data::floats(record[0]), targets);
    }
  }

  // In mini-batches. Inputs that are mixed of both branches have the float branch's outputs for targets; and so has a
  // bias that is trained, which is to undo what has become of their mean.
  bool aims_at_own_outputs() const { return options_.config.drop_ratio >= 1 && !options_.config.update_bias; }

  data::Array own_targets(const Work& work, const store::Record& record) const {
    const auto outputs = std::make_shared<std::vector<float>>(
        finetune::own_outputs(work.weights, work.geometry, work.bias, record[0].shape, data::floats(record[0]),
                              kernels_, thread_count(options_.threads)));
    const auto exact = work.needs_targets ? data::floats(record[1]) : std::span<const float>();
    const float share = finetune::float_share(work.columns_each, work.weights.levels());
    for (std::size_t i = 0; i < exact.size(); ++i) (*outputs)[i] += share * (exact[i] - (*outputs)[i]);
    return {record[0].type, work.geometry.output_shape(record[0].shape),
            std::as_bytes(std::span<const float>(*outputs)), outputs};
  }

  std::filesystem::path state_file(const Work& work) const {
    return options_.directory / fmt::format("solving-{}", work.layer - layers_.data());
  }

  void begin(Work& work, const store::Record& record) {
    const auto& shape = record[0].shape;
    const auto threads = thread_count(options_.threads);
    work.geometry = geometry_of(float_, *work.layer, shape);
    work.weights = weights_of(float_, quantized_, *work.layer, work.geometry);
    work.bias = bias_of(float_, *work.layer);
    const std::uint64_t samples = expected_samples();
    work.needs_targets = needs_targets_[static_cast<std::size_t>(work.layer - layers_.data())];
    work.columns_each = finetune::columns_each(work.geometry, shape, samples);
    work.streamed = is_streamed(work.geometry, shape, samples, options_.config, threads);
    solver_->check_memory(fmt::format("fine-tuning {} '{}'", work.layer->op_type, work.layer->name), work.geometry,
                          shape, work.streamed, options_.config);
    const std::string name = fmt::format("layer-{}", work.layer - layers_.data());
    if (work.streamed) {
      work.stored = std::make_unique<StoredSamples>(options_.spool, name);
    } else {
      check_memory(work, finetune::gram_cost(work.geometry, shape, 1, options_.config, threads).bytes);
      work.sums.emplace(
          work.geometry, options_.config, samples,
          [&solver = *solver_, geometry = work.geometry, threads] { return solver.sums(geometry, threads); });
    }
    work.held_back = std::make_unique<StoredSamples>(options_.spool, name + "-held-back");
  }

  void check_memory(const Work& work, std::uint64_t needed) const {
    const std::uint64_t most = options_.memory.layers.at(static_cast<std::size_t>(work.layer - layers_.data()));
    if (needed <= most) return;
    const auto [need, left] = format_sizes(needed, most);
    throw resource_error(fmt::format("fine-tuning {} '{}' needs {} of memory, but only {} of the budget are left",
                                     work.layer->op_type, work.layer->name, need, left),
                         "raise --memory-budget, or give --form streamed");
  }

  /// Integers, and the scales that they are steps of where these are no longer the weights' own.
  struct Found {
    finetune::Solution solution;
    std::optional<finetune::QuantizedWeights> fitted;
    double nearest_error = 0, error = 0;  // on the form, where no samples are left to judge by
  };

  SolvedLayer solve(Work& work) {
    const auto start = Clock::now();
    const auto& layer = *work.layer;
    name_work(layer.name);
    std::optional<LayerState> state;
    if (options_.state_seconds) state.emplace(state_file(work), *options_.state_seconds);
    const finetune::SolveControl control{thread_count(options_.threads), options_.stop,
                                         [this](std::size_t, double) { report(); }, state ? &*state : nullptr};
    FinetuneConfig config = options_.config;
    config.update_bias = config.update_bias && layer.stored_bias;
    config.update_scale = config.update_scale && layer.owns_scale;
    config.damping = finetune::damping_for(config.damping, work.columns_each);
    Found found = search(work, config, control);
    SolvedLayer solved;
    solved.tuning = {.name = layer.name, .op_type = layer.op_type, .streamed = work.streamed};
    solved.tuning.tuned = judge(work, control, found);
    solved.tuning.error_before = found.nearest_error;
    solved.tuning.error_after = found.error;
    solved.integers = stored_integers(quantized_, layer, work.geometry, found.solution.integers);
    if (solved.tuning.tuned && found.fitted) {
      solved.scales = stored_scales(quantized_, layer, *found.fitted);
      if (layer.stored_bias) solved.bias = stored_bias(quantized_, layer, found.solution.bias, solved.scales.bias);
    } else if (solved.tuning.tuned && config.update_bias) {
      solved.bias = stored_bias(quantized_, layer, found.solution.bias, {});
    }
    solved.tuning.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    work.stored.reset();
    work.held_back.reset();
    work.weights = {};
    return solved;
  }

  Found search(Work& work, const FinetuneConfig& config, const finetune::SolveControl& control) {
    const auto& weights = work.weights;
    const auto& bias = work.bias;
    Found found;
    if (work.streamed) {
      found.solution = solver_->solve_streamed(weights, work.geometry, bias, *work.stored, config, control);
      if (config.update_scale) {
        fit(work, config,
            finetune::output_sums(weights, work.geometry, found.solution, *work.stored, kernels_, control), found);
      }
      return found;
    }
    finetune::AnyForm form = *std::exchange(work.form, std::nullopt);
    const bool judged = work.held_back->count() > 0;
    const bool integers_only = config.rounding == Rounding::gptq && finetune::coordinate_sweeps(config) == 0 && judged;
    finetune::aim_at_own_outputs(
        form, weights, bias,
        {finetune::float_share(work.columns_each, work.weights.levels()), config.update_bias, integers_only}, kernels_,
        control.threads);
    found.solution = solver_->solve(weights, form, bias, config, control);
    if (config.update_scale) {
      fit(work, config,
          finetune::output_sums(weights, std::get<finetune::GramForm>(form), found.solution, control.threads), found);
    }
    if (!judged) {
      found.nearest_error = finetune::mean_squared_error(weights, form, finetune::nearest(weights, bias), kernels_);
      found.error =
          finetune::mean_squared_error(found.fitted ? *found.fitted : weights, form, found.solution, kernels_);
    }
    return found;
  }

  void fit(const Work& work, const FinetuneConfig& config, const finetune::OutputSums& sums, Found& found) const {
    auto weights = work.weights;
    auto solution = found.solution;
    finetune::fit_scales(sums, config.update_bias, weights, solution);
    if (!holds_bias(stored_scales(quantized_, *work.layer, weights), solution.bias)) return;
    found.fitted = std::move(weights);
    found.solution = std::move(solution);
  }

  /// Whether what was found is better than nearest rounding, which else takes its place.
  bool judge(const Work& work, const finetune::SolveControl& control, Found& found) const {
    auto& samples = work.held_back->count() > 0 || !work.stored ? *work.held_back : *work.stored;
    if (samples.count() == 0) return found.error < found.nearest_error;
    auto kept = finetune::keep_if_better(
        work.weights, work.bias, found.fitted ? *found.fitted : work.weights, std::move(found.solution),
        [&](const finetune::QuantizedWeights& weights, const finetune::Solution& candidate) {
          return solver_->reconstruction_error(weights, work.geometry, candidate, samples, control);
        });
    found.nearest_error = kept.nearest_error;
    found.error = kept.error;
    found.solution = std::move(kept.solution);
    return kept.tuned;
  }

  // What devices do from here on is of these layers.
  void name_work(const std::string& layers) const {
    if (options_.activity != nullptr) options_.activity->begin(layers);
  }

  void report() const {
    if (options_.progress) options_.progress("finetune", done_, layers_.size());
  }

  void apply(const TunedLayer& layer, const StoredLayer& solved) {
    auto& tensors = quantized_.graph.initializers;
    tensors[layer.stored_weight].data = solved.integers;
    if (solved.bias.size() > 0) tensors[*layer.stored_bias].data = solved.bias;
    if (solved.scale.size() > 0) tensors[layer.stored_scale].data = solved.scale;
    if (solved.bias_scale.size() > 0) tensors[*layer.bias_scale].data = solved.bias_scale;
  }

  const onnx::Model& float_;
  onnx::Model& quantized_;
  data::SampleSource& source_;
  const FinetuneOptions& options_;
  std::vector<std::string>& notes_;
  const finetune::Kernels& kernels_;
  std::unique_ptr<finetune::LayerSolver> solver_;
  std::vector<TunedLayer> layers_;
  std::vector<Step> steps_;
  std::vector<bool> needs_targets_;  // for each layer
  graph::ValueTypes quantized_types_;
  SolvedLayers solved_;
  exec::Branch float_branch_;
  exec::Branch quantized_branch_;
  std::size_t samples_ = 0;
  std::size_t done_ = 0;
  std::vector<LayerTuning> results_;
};

}  // namespace

std::vector<LayerTuning> finetune(const onnx::Model& float_model, const graph::ValueTypes& float_types,
                                  onnx::Model& quantized, std::vector<TunedLayer> layers, const exec::Runtime& runtime,
                                  data::SampleSource& source, const FinetuneOptions& options,
                                  std::vector<std::string>& notes) {
  return Tuner(float_model, float_types, quantized, std::move(layers), runtime, source, options, notes).run();
}

}  // namespace detent::tuning
