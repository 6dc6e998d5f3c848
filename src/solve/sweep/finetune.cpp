#include "solve/sweep/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "base/process.h"
#include "base/text.h"
#include "exec/sweep.h"
#include "graph/decisions.h"
#include "graph/traits.h"
#include "planning/memory.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/input_form.h"
#include "solve/layers/layer_solver.h"
#include "solve/solvers.h"
#include "solve/sweep/layer_tuner.h"
#include "solve/sweep/solved_layers.h"

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
    trim_heap();  // pieces that the layers before have left would be added up
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
    return std::equal(stage.layers.begin(), stage.layers.end(), stored.begin(), stored.end(),
                      [&](std::size_t i, const StoredLayer& solved) {
                        const auto& layer = layers_[i];
                        return solved.tuning.name == layer.name && fits(solved.integers, layer.stored_weight) &&
                               (solved.bias.size() == 0 || fits(solved.bias, layer.stored_bias));
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
          const LargeBlocksApart apart;  // sums stay while much comes and goes beside them
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
    trim_heap();  // of what ran
    const LargeBlocksApart apart;
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

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kUnknown = 128 * kMiB;  // of segments whose shapes depend on values; a quarter are buffers
constexpr std::uint64_t kBeside = 22 * kMiB;    // measured: oneDNN, a second model, heap in pieces; processors differ
// Of sums of several layers, and of samples that wait for the next layers. By default little: the rest of the samples
// is on disk, which took no longer, and a run should take what plain inference does.
constexpr std::uint64_t kTogether = 256 * kMiB, kTogetherByDefault = 8 * kMiB;
constexpr std::uint64_t kSpoolByDefault = 8 * kMiB;

planning::StagesOfForm nodes_of(const std::vector<Stage>& stages, const std::vector<int>& ends, int nodes) {
  planning::StagesOfForm form;
  for (const auto& stage : stages) {
    const std::size_t s = stage.segment;
    form.push_back({s == 0 ? 0 : ends[s - 1], s < ends.size() ? ends[s] : nodes});
  }
  return form;
}

std::uint64_t less(std::uint64_t from, std::uint64_t what) { return from - std::min(from, what); }

// Tables that are quantized stand there as integers and, since no kernel looks up pairs, as floats too. `selected`: the
// nodes of a float model that will be quantized; null: the model is quantized.
std::uint64_t dequantized_tables(const onnx::Model& model, const std::vector<bool>* selected) {
  const graph::Index index(model);
  std::map<std::string, std::uint64_t> tables;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!graph::has_trait(node, graph::Trait::looks_up)) continue;
    const int pair = index.producer(node.inputs().front());
    const bool has_pair = pair != graph::kNone && graph::has_trait(model.graph.nodes[static_cast<std::size_t>(pair)],
                                                                   graph::Trait::dequantizes);
    if (selected != nullptr ? !(*selected)[n] : !has_pair) continue;
    const auto& name =
        has_pair ? model.graph.nodes[static_cast<std::size_t>(pair)].inputs().front() : node.inputs().front();
    const int table = index.initializer(name);
    if (table == graph::kNone) continue;
    const auto count = static_cast<std::uint64_t>(model.graph.initializers[static_cast<std::size_t>(table)].count());
    tables[name] = count * (sizeof(float) + 1);
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, size] : tables) bytes += size;
  return bytes;
}

// What each layer takes at its turn, and what is there beside it.
struct Needs {
  std::vector<std::uint64_t> others;  // by layer
  std::vector<std::uint64_t> own;     // the same
  std::uint64_t together = 0;
  std::uint64_t buffers = 0;

  std::uint64_t peak() const {
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < others.size(); ++i) most = std::max(most, others[i] + own[i]);
    return most;
  }
};

// `integers`: bytes of those in the model, and as they were saved.
Needs needs_of(std::uint64_t budget, bool asked_for, const onnx::Model& float_model, const graph::ValueTypes& types,
               const onnx::Model& quantized, const std::vector<TunedLayer>& layers, std::uint64_t integers,
               std::uint64_t samples, const FinetuneConfig& config, std::size_t threads) {
  Needs needs;
  needs.together = std::min(asked_for ? kTogether : kTogetherByDefault, budget / 32);
  const auto stages = stages_of(layers, float_model, quantized, needs.together);
  std::vector<int> before;  // each segment's first layer
  for (const auto& stage : stages) {
    if (!stage.in_body) before.push_back(layers[stage.layers.front()].float_node);
  }
  // Segments of the quantized model take what the same nodes of the float model do, within a little.
  const int nodes = static_cast<int>(float_model.graph.nodes.size());
  const std::array both{nodes_of(stages, float_ends(layers, stages), nodes), nodes_of(stages, before, nodes)};
  const auto segments =
      planning::memory_side_by_side(float_model, types, both)
          .value_or(planning::SideBySide{std::vector<std::uint64_t>(stages.size(), kUnknown), kUnknown / 4});
  needs.buffers = segments.buffers;

  std::map<std::string, std::uint64_t> own;
  for (const auto& cost : layer_costs(float_model, types, config, samples, threads)) own[cost.name] = cost.bytes;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::uint64_t sums = 0;
    for (const auto i : stages[s].layers) sums += gram_bytes(float_model, layers[i]);
    for (const auto i : stages[s].layers) {
      needs.others.push_back(kBeside + segments.stages[s] + integers + sums - gram_bytes(float_model, layers[i]));
      needs.own.push_back(own[layers[i].name]);
    }
  }
  return needs;
}

// Those of a float model that will be tuned where `selected` nodes are quantized, as if they were it already.
std::vector<TunedLayer> planned_layers(const onnx::Model& float_model, const std::vector<bool>& selected,
                                       const FinetuneConfig& config) {
  auto layers = linear_layers(float_model);
  std::erase_if(layers, [&](const auto& layer) {
    const auto node = static_cast<std::size_t>(layer.float_node);
    return !selected[node] || !is_selected(float_model.graph.nodes[node], config);
  });
  for (auto& layer : layers) {
    layer.quantized_node = layer.float_node;
    layer.input = layer.float_input;
  }
  return layers;
}

}  // namespace

std::vector<LayerTuning> finetune(const onnx::Model& float_model, const graph::ValueTypes& float_types,
                                  onnx::Model& quantized, std::vector<TunedLayer> layers, const exec::Runtime& runtime,
                                  data::SampleSource& source, const FinetuneOptions& options,
                                  std::vector<std::string>& notes) {
  return Tuning(float_model, float_types, quantized, std::move(layers), runtime, source, options, notes).run();
}

std::uint64_t planned_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                             const graph::ValueTypes& types, const std::vector<bool>& selected, std::uint64_t samples,
                             const FinetuneConfig& config, std::size_t threads) {
  const auto layers = planned_layers(float_model, selected, config);
  if (layers.empty()) return 0;
  std::uint64_t integers = dequantized_tables(float_model, &selected);
  for (const auto& layer : layers)
    integers += 2 * static_cast<std::uint64_t>(float_model.graph.initializers[layer.float_weight].count());
  return needs_of(budget, asked_for, float_model, types, float_model, layers, integers, samples, config, threads)
      .peak();
}

std::uint64_t planned_files(std::uint64_t budget, std::uint64_t peak, bool asked_for, const onnx::Model& float_model,
                            const graph::ValueTypes& types, const std::vector<bool>& selected, std::uint64_t samples,
                            const FinetuneConfig& config) {
  const auto layers = planned_layers(float_model, selected, config);
  const graph::Index index(float_model);
  const auto walk = planning::SegmentWalk::make(float_model, index, types, {}, {});
  if (layers.empty() || !walk) return 0;
  const auto stages =
      stages_of(layers, float_model, float_model, std::min(asked_for ? kTogether : kTogetherByDefault, budget / 32));
  const auto ranges = nodes_of(stages, float_ends(layers, stages), walk->nodes());
  const auto waiting_at = [&](int cut) { return cut > 0 && cut < walk->nodes() ? walk->bytes_spooled_at(cut) : 0; };
  std::uint64_t most = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    // Both models' values before a stage are given back one sample after another, while those behind it come.
    std::uint64_t bytes = 2 * samples * std::max(waiting_at(ranges[s].begin), waiting_at(ranges[s].end));
    for (const auto i : stages[s].layers) {
      const auto& output = float_model.graph.nodes[static_cast<std::size_t>(layers[i].float_node)].outputs().front();
      bytes += samples / kHeldBackEvery *
               (graph::static_bytes(types, layers[i].float_input).value_or(0) +
                graph::static_bytes(types, output).value_or(0));
    }
    most = std::max(most, bytes);
  }
  const std::uint64_t room = less(budget, peak);
  return less(most, planning::split_budget(asked_for ? room : std::min(room, kSpoolByDefault), 0).records);
}

MemoryShares share_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                          const graph::ValueTypes& types, const onnx::Model& quantized,
                          const std::vector<TunedLayer>& layers, std::uint64_t samples, const FinetuneConfig& config,
                          std::size_t threads) {
  std::uint64_t integers = dequantized_tables(quantized, nullptr);
  for (const auto& layer : layers) integers += 2 * quantized.graph.initializers[layer.stored_weight].data.size();
  const auto needs =
      needs_of(budget, asked_for, float_model, types, quantized, layers, integers, samples, config, threads);
  const std::uint64_t peak = needs.peak();
  if (peak > budget) throw planning::over_budget("fine-tuning", peak, budget);
  MemoryShares memory;
  memory.together = needs.together;
  for (const auto others : needs.others) memory.layers.push_back(less(budget, others));
  const std::uint64_t room = less(budget, peak);
  memory.spool = planning::split_budget(asked_for ? room : std::min(room, kSpoolByDefault), needs.buffers);
  return memory;
}

bool is_streamed(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                 const FinetuneConfig& config, std::size_t threads) {
  if (config.form == FinetuneForm::streamed) return true;
  const bool possible = has_gram_form(config);
  const Solver* solver = find_solver(config.solver);
  const bool has_choice = solver == nullptr || solver->has_streamed_form;
  if (!possible || config.form == FinetuneForm::gram || !has_choice) return !possible;
  constexpr std::uint64_t kLargestForm = std::uint64_t{512} << 20;
  constexpr double kGramIsBetter = 2;  // by several percent of the error: worth as many times the work
  const auto gram = gram_cost(geometry, input_shape, samples, config, threads);
  const auto streamed = streamed_cost(geometry, input_shape, samples, config, threads);
  return gram.bytes > kLargestForm || kGramIsBetter * streamed.flops < gram.flops;
}

std::vector<LayerCost> layer_costs(const onnx::Model& model, const graph::ValueTypes& types,
                                   const FinetuneConfig& config, std::uint64_t samples, std::size_t threads) {
  std::vector<LayerCost> costs;
  for (const auto& layer : linear_layers(model)) {
    const auto node = static_cast<std::size_t>(layer.float_node);
    if (!is_selected(model.graph.nodes[node], config) || !graph::static_bytes(types, layer.float_input)) continue;
    Shape shape;
    for (const auto& dim : *types.at(layer.float_input).shape) shape.push_back(dim.value);
    // Where the runtime does not know the rank either, it tells of no axes.
    if (shape.empty()) continue;
    const auto geometry = geometry_of(model, layer, shape);
    const bool streamed = is_streamed(geometry, shape, samples, config, threads);
    const auto cost = streamed ? streamed_cost(geometry, shape, samples, config, threads)
                               : gram_cost(geometry, shape, samples, config, threads);
    costs.push_back({node, layer.name, streamed, cost.bytes, cost.flops, geometry, shape});
  }
  return costs;
}

namespace {

// How often a method tells others of its integers, in the form that it is given: what rounds, each time that the better
// of two are chosen, and descent.
double times_integers_travel(const LayerCost& cost, const FinetuneConfig& config, bool has_inputs, bool aims) {
  if (cost.streamed) return uses_sample_descent(config) ? 2 : 1;
  const double descends = coordinate_sweeps(config) > 0 ? 1 : 0;
  if (config.solver != WeightSolver::gptq) return (config.solver == WeightSolver::nearest ? 0 : 2) + descends;
  if (has_inputs) return 1;
  return (aims || descends > 0 ? 4 : 1) + descends;
}

}  // namespace

double exchanged_bytes(const LayerCost& cost, const FinetuneConfig& config, std::uint64_t samples) {
  const auto& geometry = cost.geometry;
  const auto positions = static_cast<double>(Patches(geometry, cost.input_shape).positions());
  const auto input = static_cast<double>(product_of(cost.input_shape));
  const auto groups = static_cast<double>(geometry.groups), fan_in = static_cast<double>(geometry.fan_in());
  const auto outputs = static_cast<double>(geometry.outputs), all = static_cast<double>(samples);
  const double fitted = all * (1 - 1.0 / kHeldBackEvery);
  const bool aims =
      config.update_bias || asymmetric_share(positions_per_weight(geometry, cost.input_shape, samples)) > 0;
  const double whole = input + (aims ? positions * outputs : 0);
  if (cost.streamed)
    return sizeof(float) * fitted * whole + outputs * fan_in * times_integers_travel(cost, config, false, aims);
  const double drawn = static_cast<double>(gram_positions(geometry)) / all + 1, taken = std::min(positions, drawn);
  const bool all_are_taken =
      positions <= drawn || (!aims && ShiftedSums::saves_work(geometry) && positions <= kTimesByShifts * drawn);
  const double part = std::min(whole, drawn * (groups * fan_in + (aims ? outputs : 0)));
  // Samples come as a whole until there are so many positions that sums begin.
  const auto most = static_cast<double>(most_positions(geometry, config));
  const double before = all_are_taken ? fitted : std::min(fitted, std::floor(most / taken) + 1);
  const bool has_sums = all * taken > most;
  const double sums = has_sums ? groups * fan_in * fan_in / 2 + (aims ? outputs * fan_in : 0) : 0;
  return sizeof(float) * (before * whole + (fitted - before) * part + sums) +
         outputs * fan_in * times_integers_travel(cost, config, !has_sums, aims);
}

const LayerCost& heaviest(const std::vector<LayerCost>& costs) {
  if (costs.empty())
    throw usage_error("no layer of known shape can be fine-tuned",
                      "change --set finetune-nodes or --set finetune-op-types");
  return *std::max_element(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
}

}  // namespace detent::solve
