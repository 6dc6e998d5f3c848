#include "solve/sweep/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/paths.h"
#include "data/sample_inputs.h"
#include "exec/sweep.h"
#include "graph/decisions.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/layer_solver.h"
#include "solve/sweep/body_records.h"
#include "solve/sweep/layer_tuner.h"
#include "solve/sweep/shared_samples.h"
#include "solve/sweep/solved_layers.h"
#include "solve/sweep/stages.h"
#include "solve/sweep/tuned_layer.h"

namespace detent::solve {
namespace {

std::vector<TunedLayer> require_layers(std::vector<TunedLayer> layers) {
  if (layers.empty()) {
    throw usage_error("--finetune: no selected layer has quantized weights",
                      "change --set finetune-nodes or --set finetune-op-types");
  }
  return layers;
}

class Tuning {
 public:
  Tuning(const onnx::Model& float_model, const graph::ValueTypes& float_types, onnx::Model& quantized,
         std::vector<TunedLayer> layers, const exec::Runtime& runtime, data::SampleSource& source,
         const FinetuneOptions& options, std::vector<std::string>& notes)
      : float_(float_model),
        quantized_(quantized),
        source_(source),
        options_(options),
        notes_(notes),
        kernels_(cpu_kernels()),
        solver_(options.device.is_cpu() ? cpu_solver(kernels_, team())
                                        : cuda_solver(options.device, kernels_, options.activity)),
        layers_(require_layers(std::move(layers))),
        stages_(stages_of(layers_, float_model, quantized, most_sums())),
        tuner_(float_model, options.static_types != nullptr ? *options.static_types : float_types, quantized, layers_,
               std::max<std::uint64_t>(source.sample_count(), 1), *solver_, kernels_, options, [this] { report(); }),
        quantized_types_(exec::infer_value_types(runtime, quantized)),
        solved_(options.directory, options.ranks, options.stop),
        float_branch_(runtime, float_model, float_types, float_cuts(), &options.spool, float_options()),
        quantized_branch_(runtime, quantized, quantized_types_, quantized_ends(layers_, stages_), &options.spool,
                          quantized_options()) {}

  std::vector<LayerTuning> run() {
    for (const auto& stage : stages_) run_stage(stage);
    for (auto& note : solver_->notes()) notes_.push_back(std::move(note));
    return std::move(results_);
  }

 private:
  using TakeSample =
      std::function<void(std::size_t sample, std::span<const data::Array> graph_inputs, const std::string& where)>;

  exec::BranchOptions branch_options(const char* name, std::vector<std::string> taps,
                                     std::vector<std::string> readers) {
    return {.session = {.tuning = exec::SessionMode::lean,
                        .threads = options_.threads,
                        .stop = options_.stop,
                        .place = options_.place},
            .taps = std::move(taps),
            .readers = std::move(readers),
            .batch_invariant = false,
            .name = name,
            .inputs_of = [this](std::size_t sample) { return data::sample_inputs(source_, sample); }};
  }

  exec::BranchOptions float_options() {
    const auto targets = body_targets(layers_);
    return branch_options("float-", targets, needs_float_input() ? targets : std::vector<std::string>());
  }

  exec::BranchOptions quantized_options() {
    return branch_options("quantized-", {}, body_readers(layers_, quantized_));
  }

  /// After the last target of each stage.
  std::vector<int> float_cuts() const {
    auto cuts = float_ends(layers_, stages_);
    if (!cuts.empty() && cuts.back() == static_cast<int>(float_.graph.nodes.size())) cuts.pop_back();
    return cuts;
  }

  /// Whether the sample goes through the stage's segment of the float model: also where only a later stage needs it.
  bool runs_float(const Stage& stage, std::size_t sample) const {
    if (is_held_back(sample)) return true;
    for (std::size_t i = stage.layers.front(); i < layers_.size(); ++i) {
      if (tuner_.needs_targets(i)) return true;
    }
    return false;
  }

  bool needs_float_input() const { return options_.config.drop_ratio < 1; }

  void run_stage(const Stage& stage) {
    const auto number = static_cast<std::size_t>(&stage - stages_.data());
    if (stage.in_body && counted_ != stage.segment) count_runs(stage.segment);
    auto stored = solved_.load(number, stage.layers.size());
    if (stored && !are_of(stage, *stored)) stored.reset();
    std::vector<LayerProblem> problems;
    for (const auto i : stage.layers) problems.emplace_back().layer = &layers_[i];
    name_activity(problems.size() == 1 ? problems[0].layer->name
                                       : fmt::format("{} and {} more", problems[0].layer->name, problems.size() - 1));
    if (!stage.in_body) {
      sweep(stage, problems, !stored);
      float_branch_.finish(stage.segment);
      quantized_branch_.finish(stage.segment);
    } else if (!stored) {
      sweep_bodies(stage, problems);
    }
    if (!stored) {
      solve(number, problems);
      stored = solved_.load_saved(number, problems.size());
      for (const auto& problem : problems) paths::remove(tuner_.state_file(problem));
    }
    for (std::size_t i = 0; i < problems.size(); ++i) finish(*problems[i].layer, stored->at(i));
    done_ += problems.size();
    report();
  }

  /// Whether what an earlier process left fits the stage's layers.
  bool are_of(const Stage& stage, const std::vector<StoredLayer>& stored) const {
    const auto fits = [&](const onnx::TensorData& data, const std::optional<std::size_t>& tensor) {
      return tensor && data.size() == quantized_.graph.initializers[*tensor].data.size();
    };
    const auto is_none_or_fits = [&](const onnx::TensorData& data, const std::optional<std::size_t>& tensor) {
      return data.size() == 0 || fits(data, tensor);
    };
    return std::equal(stage.layers.begin(), stage.layers.end(), stored.begin(), stored.end(),
                      [&](std::size_t i, const StoredLayer& solved) {
                        const auto& layer = layers_[i];
                        return solved.tuning.name == layer.name && fits(solved.integers, layer.stored_weight) &&
                               is_none_or_fits(solved.bias, layer.stored_bias) &&
                               is_none_or_fits(solved.scale, layer.stored_scale) &&
                               is_none_or_fits(solved.bias_scale, layer.bias_scale);
                      });
  }

  void finish(const TunedLayer& layer, const StoredLayer& solved) {
    apply(layer, solved);
    if (!solved.tuning.seen)
      notes_.push_back(
          fmt::format("{} '{}': not fine-tuned: of the samples that weights are fitted to, none came to it",
                      layer.op_type, layer.name));
    results_.push_back(solved.tuning);
    if (options_.solved) options_.solved(solved.tuning);
  }

  /// All samples, as they come to a segment.
  void each_sample(std::size_t segment, const TakeSample& take) {
    if (segment == 0) {
      source_.rewind();
    } else {
      float_branch_.prefetch(segment, 0, samples_);
    }
    for (std::size_t s = 0; segment == 0 || s < samples_; ++s) {
      std::optional<data::Sample> sample;
      if (segment == 0 && !(sample = source_.next())) {
        samples_ = s;
        break;
      }
      if (shares_samples_ && runner_of(s, team().size()) != team().rank()) continue;
      const auto graph_inputs = sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>();
      take(s, graph_inputs, fmt::format("fine-tuning, sample {}", s + 1));
      failpoint("finetune.sample");
      report();
    }
  }

  /// All samples through the stage's segment of both models, each by one rank; the problems take them, if asked to.
  void sweep(const Stage& stage, std::vector<LayerProblem>& problems, bool taken) {
    std::vector<std::string> targets, inputs;
    for (const auto& problem : problems) {
      targets.push_back(problem.layer->target);
      inputs.push_back(problem.layer->input);
    }
    if (needs_float_input()) {
      for (const auto& problem : problems) targets.push_back(problem.layer->float_input);
    }
    auto float_stage = float_branch_.load(stage.segment, "float model", targets);
    auto quantized_stage = quantized_branch_.load(stage.segment, "quantized model", inputs);
    exec::NullReceiver null;  // bodies were looked into before
    std::optional<SharedSamples> shared;
    if (shares_samples_ && taken) shared.emplace(options_.spool, problems.size(), tuner_.judges_apart(), team());
    each_sample(stage.segment, [&](std::size_t s, std::span<const data::Array> graph_inputs, const std::string& where) {
      std::vector<data::Array> float_values;
      if (runs_float(stage, s)) float_values = float_stage.run(s, graph_inputs, where, &null);
      auto quantized_values = quantized_stage.run(s, graph_inputs, where, &null);
      float_branch_.release(stage.segment, s, true);
      quantized_branch_.release(stage.segment, s, true);
      for (std::size_t i = 0; taken && i < problems.size(); ++i) {
        store::Record record;
        record.push_back(quantized_values[i]);
        if (!float_values.empty()) record.push_back(float_values[i]);
        if (needs_float_input()) record.push_back(float_values[problems.size() + i]);
        record = tuner_.paired(problems[i], std::move(record));
        if (shared) {
          shared->put(i, s, std::move(record));
        } else {
          tuner_.take(problems[i], s, std::move(record));
        }
      }
    });
    if (shared) take_shared(*shared, problems);
  }

  void take_shared(SharedSamples& shared, std::vector<LayerProblem>& problems) {
    for (auto& problem : problems) problem.judged_apart = tuner_.judges_apart();
    shared.hand_out(
        samples_,
        [&](std::size_t i, std::size_t sample, store::Record record) {
          return tuner_.reduced(problems[i], sample, std::move(record));
        },
        [&](std::size_t i, std::size_t sample, std::optional<store::Record> record) {
          if (!record) return tuner_.take_elsewhere(problems[i]);
          tuner_.take(problems[i], sample, std::move(*record));
        });
  }

  /// The same for layers in bodies, before the segment is run for good.
  void sweep_bodies(const Stage& stage, std::vector<LayerProblem>& problems) {
    auto float_stage = float_branch_.load_for_taps(stage.segment, "float model");
    auto quantized_stage = quantized_branch_.load_for_taps(stage.segment, "quantized model");
    BodyPass pass(float_stage, quantized_stage, quantized_, problems, tuner_, options_.spool);
    each_sample(stage.segment, [&](std::size_t s, std::span<const data::Array> graph_inputs, const std::string& where) {
      pass.run(s, graph_inputs, where);
    });
  }

  /// How often the layers in the segment's bodies run decides about their forms and targets. This is found before any
  /// of them is solved, also in a resumed run: a Loop may run more or less often with other weights.
  void count_runs(std::size_t segment) {
    std::vector<std::size_t> layers;
    std::vector<TunedLayer> counted;
    for (const auto& stage : stages_) {
      if (!stage.in_body || stage.segment != segment) continue;
      for (const auto i : stage.layers) {
        layers.push_back(i);
        counted.push_back(layers_[i]);
      }
    }
    std::vector<std::uint64_t> runs(layers.size());
    auto stage = quantized_branch_.load_for_taps(segment, "quantized model");
    LayerTaps taps(stage, body_readers(counted, quantized_),
                   [&](std::size_t layer, const data::TensorView&) { ++runs[layer]; });
    each_sample(segment, [&](std::size_t s, std::span<const data::Array> graph_inputs, const std::string& where) {
      stage.run(s, graph_inputs, where, &taps);
    });
    for (std::size_t i = 0; i < layers.size(); ++i) tuner_.expect(layers[i], runs[i]);
    counted_ = segment;
  }

  void solve(std::size_t stage, std::vector<LayerProblem>& problems) {
    for (auto& problem : problems) tuner_.finish_samples(problem);
    std::vector<SolvedLayer> solved;
    for (auto& problem : problems) {
      name_activity(problem.layer->name);
      solved.push_back(tuner_.solve(problem));
    }
    solved_.save(stage, solved);
    failpoint("finetune.solved");
  }

  /// What one rank has room for may be more than another has, and all have to take the same layers together.
  std::uint64_t most_sums() const {
    return shim::broadcast_value(options_.ranks, std::min(options_.memory.together, solver_->sums_budget()),
                                 options_.stop);
  }

  shim::Team team() const { return {options_.ranks, options_.stop}; }

  /// Where all know what a rank runs: layers in bodies take as many records as these run, and random numbers are drawn
  /// in the order of samples.
  bool can_share_samples() const {
    return team().size() > 1 && !graph::draws_numbers(float_) &&
           std::none_of(layers_.begin(), layers_.end(), [](const TunedLayer& layer) { return layer.in_body; });
  }

  void apply(const TunedLayer& layer, const StoredLayer& solved) {
    auto& tensors = quantized_.graph.initializers;
    tensors[layer.stored_weight].data = solved.integers;
    if (solved.bias.size() > 0) replace_bias(quantized_, layer, solved.bias);
    if (solved.scale.size() > 0) tensors[layer.stored_scale].data = solved.scale;
    if (solved.bias_scale.size() > 0) tensors[*layer.bias_scale].data = solved.bias_scale;
  }

  /// What devices do from here on is of these layers.
  void name_activity(const std::string& layers) const {
    if (options_.activity != nullptr) options_.activity->begin(layers);
  }

  void report() const {
    if (options_.progress) options_.progress("finetune", done_, layers_.size());
  }

  const onnx::Model& float_;
  onnx::Model& quantized_;
  data::SampleSource& source_;
  const FinetuneOptions& options_;
  std::vector<std::string>& notes_;
  const Kernels& kernels_;
  std::unique_ptr<LayerSolver> solver_;
  std::vector<TunedLayer> layers_;
  bool shares_samples_ = can_share_samples();
  std::vector<Stage> stages_;
  LayerTuner tuner_;
  graph::ValueTypes quantized_types_;
  SolvedLayers solved_;
  exec::Branch float_branch_;
  exec::Branch quantized_branch_;
  std::size_t samples_ = 0;
  std::size_t done_ = 0;
  std::optional<std::size_t> counted_;  // the last segment whose bodies' runs were counted
  std::vector<LayerTuning> results_;
};

}  // namespace

std::vector<LayerTuning> finetune(const onnx::Model& float_model, const graph::ValueTypes& float_types,
                                  onnx::Model& quantized, std::vector<TunedLayer> layers, const exec::Runtime& runtime,
                                  data::SampleSource& source, const FinetuneOptions& options,
                                  std::vector<std::string>& notes) {
  return Tuning(float_model, float_types, quantized, std::move(layers), runtime, source, options, notes).run();
}

}  // namespace detent::solve
