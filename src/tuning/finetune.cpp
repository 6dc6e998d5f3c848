#include "tuning/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/failpoint.h"
#include "data/sample_inputs.h"
#include "exec/sweep.h"
#include "finetune/kernels.h"
#include "finetune/layer_solver.h"
#include "tuning/layer_tuner.h"
#include "tuning/solved_layers.h"
#include "tuning/stages.h"
#include "tuning/tuned_layer.h"

namespace detent::tuning {
namespace {

std::vector<TunedLayer> some(std::vector<TunedLayer> layers) {
  if (layers.empty()) {
    throw usage_error("--finetune: no selected layer has quantized weights",
                      "change --finetune-nodes or --finetune-op-types");
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
        kernels_(finetune::cpu_kernels()),
        solver_(options.device.is_cpu() ? finetune::cpu_solver(kernels_)
                                        : finetune::cuda_solver(options.device, kernels_, options.activity)),
        layers_(some(std::move(layers))),
        stages_(stages_of(layers_, float_model, quantized, std::min(options.memory.together, solver_->sums_budget()))),
        tuner_(float_model, options.static_types != nullptr ? *options.static_types : float_types, quantized, layers_,
               std::max<std::uint64_t>(source.file_count(), 1), *solver_, kernels_, options, [this] { report(); }),
        quantized_types_(exec::probe_values(runtime, quantized)),
        solved_(options.directory),
        float_branch_(runtime, float_model, float_types, float_cuts(), &options.spool, branch_options("float-")),
        quantized_branch_(runtime, quantized, quantized_types_, quantized_ends(layers_, stages_), &options.spool,
                          branch_options("quantized-")) {}

  std::vector<LayerTuning> run() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) run_stage(stage);
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

  /// After the last target of each stage.
  std::vector<int> float_cuts() const {
    auto cuts = float_ends(layers_, stages_);
    if (cuts.back() == static_cast<int>(float_.graph.nodes.size())) cuts.pop_back();
    return cuts;
  }

  /// Whether the sample goes through the stage's segment of the float model: also where only a later stage needs it.
  bool runs_float(std::size_t stage, std::size_t sample) const {
    if (LayerTuner::is_held_back(sample)) return true;
    for (std::size_t i = stages_[stage].layers.front(); i < layers_.size(); ++i) {
      if (tuner_.needs_targets(i)) return true;
    }
    return false;
  }

  bool needs_float_input() const { return options_.config.drop_ratio < 1; }

  void run_stage(std::size_t stage) {
    auto stored = solved_.load(stage);
    std::vector<LayerProblem> problems;
    for (const auto i : stages_[stage].layers) problems.emplace_back().layer = &layers_[i];
    name_activity(problems.size() == 1 ? problems[0].layer->name
                                       : fmt::format("{} and {} more", problems[0].layer->name, problems.size() - 1));
    sweep(stage, problems, !stored);
    float_branch_.finish(stage);
    quantized_branch_.finish(stage);
    if (!stored) stored = solve(stage, problems);
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const auto& layer = stored->at(i);
      apply(*problems[i].layer, layer);
      results_.push_back(layer.tuning);
      if (options_.solved) options_.solved(layer.tuning);
    }
    done_ += problems.size();
    report();
  }

  /// All samples through the stage's segment of both models; the problems take them if `keep`.
  void sweep(std::size_t stage, std::vector<LayerProblem>& problems, bool keep) {
    std::vector<std::string> targets, inputs;
    for (const auto& problem : problems) {
      targets.push_back(problem.layer->target);
      inputs.push_back(problem.layer->input);
    }
    if (needs_float_input()) {
      for (const auto& problem : problems) targets.push_back(problem.layer->float_input);
    }
    auto float_stage = float_branch_.load(stage, "float model", targets);
    auto quantized_stage = quantized_branch_.load(stage, "quantized model", inputs);
    if (stage == 0) {
      source_.rewind();
    } else {
      float_branch_.announce(stage, 0, samples_);
    }
    for (std::size_t s = 0; stage == 0 || s < samples_; ++s) {
      std::optional<data::Sample> sample;
      if (stage == 0 && !(sample = source_.next())) {
        samples_ = s;
        break;
      }
      const auto graph_inputs = sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>();
      const std::string where = fmt::format("fine-tuning, sample {}", s + 1);
      std::vector<data::Array> float_values;
      if (runs_float(stage, s)) float_values = float_stage.run(s, graph_inputs, where, nullptr);
      auto quantized_values = quantized_stage.run(s, graph_inputs, where, nullptr);
      float_branch_.release(stage, s, true);
      quantized_branch_.release(stage, s, true);
      if (keep) {
        for (std::size_t i = 0; i < problems.size(); ++i) {
          store::Record record;
          record.push_back(quantized_values[i]);
          if (!float_values.empty()) record.push_back(float_values[i]);
          if (needs_float_input()) record.push_back(float_values[problems.size() + i]);
          tuner_.take(problems[i], s, std::move(record));
        }
      }
      failpoint("finetune.sample");
      report();
    }
  }

  std::vector<StoredLayer> solve(std::size_t stage, std::vector<LayerProblem>& problems) {
    for (auto& problem : problems) tuner_.finish_samples(problem);
    std::vector<SolvedLayer> solved;
    for (auto& problem : problems) {
      name_activity(problem.layer->name);
      solved.push_back(tuner_.solve(problem));
    }
    solved_.save(stage, solved);
    failpoint("finetune.solved");
    auto stored = solved_.load(stage);
    for (const auto& problem : problems) std::filesystem::remove(tuner_.state_file(problem));
    return std::move(*stored);
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
  const finetune::Kernels& kernels_;
  std::unique_ptr<finetune::LayerSolver> solver_;
  std::vector<TunedLayer> layers_;
  std::vector<Stage> stages_;
  LayerTuner tuner_;
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
  return Tuning(float_model, float_types, quantized, std::move(layers), runtime, source, options, notes).run();
}

}  // namespace detent::tuning
