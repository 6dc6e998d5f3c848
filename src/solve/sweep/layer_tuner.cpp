#include "solve/sweep/layer_tuner.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "data/floats.h"
#include "shim/shared_work.h"
#include "solve/layers/reconstruction_targets.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"
#include "solve/sweep/cost.h"
#include "solve/sweep/layer_state.h"

namespace detent::solve {
namespace {

using Clock = std::chrono::steady_clock;

// Arrays of a record of which positions were drawn. Where layers are solved from sums, others have fewer.
constexpr std::size_t kDrawn = 3;

// Collective: those of all ranks, of so many records that are held back.
std::vector<SampleError> in_order_of_samples(std::span<const SampleError> mine, std::size_t all,
                                             const shim::Team& team) {
  const auto bytes = std::as_bytes(mine);
  const auto by_rank = shim::all_gather(team.ranks, {bytes.begin(), bytes.end()}, team.stop);
  std::vector<SampleError> errors(all);
  for (std::size_t i = 0; i < all; ++i) {
    const auto& of_rank = by_rank[i % by_rank.size()];
    const std::size_t at = i / by_rank.size() * sizeof(SampleError);
    if (of_rank.size() < at + sizeof(SampleError))
      throw shim::unexpected_message(static_cast<int>(i % by_rank.size()), "the errors of too few samples");
    std::memcpy(&errors[i], of_rank.data() + at, sizeof(SampleError));
  }
  return errors;
}

}  // namespace

LayerTuner::LayerTuner(const onnx::Model& float_model, const graph::ValueTypes& float_types,
                       const onnx::Model& quantized, std::span<const TunedLayer> layers, std::uint64_t samples,
                       LayerSolver& solver, const Kernels& kernels, const FinetuneOptions& options,
                       std::function<void()> report)
    : float_(float_model),
      float_types_(float_types),
      quantized_(quantized),
      layers_(layers),
      solver_(solver),
      kernels_(kernels),
      options_(options),
      report_(std::move(report)),
      records_(layers.size(), samples) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    needs_targets_.push_back(layers_[i].in_body || needs_targets_by_shape(i));
}

void LayerTuner::expect(std::size_t layer, std::uint64_t records) {
  records_[layer] = records;
  needs_targets_[layer] = needs_targets_by_shape(layer);
}

bool LayerTuner::needs_targets_by_shape(std::size_t i) const {
  const auto& layer = layers_[i];
  Shape shape;  // stays empty where the runtime does not know the rank: it tells of no axes then
  if (graph::static_bytes(float_types_, layer.float_input)) {
    for (const auto& dim : *float_types_.at(layer.float_input).shape) shape.push_back(dim.value);
  }
  if (!has_symmetric_targets() || shape.empty()) return true;
  const auto positions = positions_per_weight(geometry_of(float_, layer, shape), shape, records_[i]);
  return share_of_asymmetric(positions) > 0;
}

float LayerTuner::share_of_asymmetric(double positions_per_weight, std::int32_t levels) const {
  return options_.symmetric ? 0 : asymmetric_share(positions_per_weight, levels);
}

// In mini-batches. Inputs that are mixed of both branches have the float branch's outputs for targets; and so has a
// bias that is trained, which is to undo the change of the outputs' mean.
bool LayerTuner::has_symmetric_targets() const {
  return options_.config.drop_ratio >= 1 && !options_.config.update_bias;
}

std::size_t LayerTuner::float_values() const { return options_.config.drop_ratio < 1 ? 2 : 1; }

bool LayerTuner::agree(const LayerProblem& problem, const data::Array& input, const store::Record& of_float) const {
  const auto geometry = geometry_of(float_, *problem.layer, input.shape);
  return of_float.back().shape == geometry.output_shape(input.shape) &&
         (of_float.size() == 1 || of_float.front().shape == input.shape);
}

store::Record LayerTuner::paired(const LayerProblem& problem, store::Record record) const {
  const auto& input = record[0];
  if (record.size() == 1 || agree(problem, input, {record.rbegin(), record.rend() - 1})) return record;
  const auto& layer = *problem.layer;
  const auto geometry = geometry_of(float_, layer, input.shape);
  const auto targets = std::make_shared<std::vector<float>>(
      symmetric_targets(weights_of(float_, quantized_, layer, geometry), geometry, bias_of(float_, layer), input.shape,
                        data::floats(input), kernels_, thread_count(options_.threads)));
  record[1] = {input.type, geometry.output_shape(input.shape), std::as_bytes(std::span<const float>(*targets)),
               targets};
  if (record.size() > 2) record[2] = input;
  return record;
}

void LayerTuner::take(LayerProblem& problem, std::size_t sample, store::Record record) {
  if (problem.held_back == nullptr) begin(problem, record);  // with the first record
  if (is_held_back(sample)) {
    problem.held_back->add(std::move(record));
    ++problem.judges;
    return;
  }
  ++problem.fitted;
  if (problem.streamed) {
    if (has_symmetric_targets()) record = {record[0], mixed_targets(problem, record)};
    problem.stored->add(std::move(record));
  } else {
    if (record.size() == kDrawn)
      return problem.sums->add_drawn(static_cast<std::size_t>(record[0].shape[0]), data::floats(record[0]),
                                     data::floats(record[1]));
    const auto targets = problem.needs_targets ? data::floats(record[1]) : std::span<const float>();
    problem.sums->add(record[0].shape, data::floats(record[0]), targets);
  }
}

// An empty array stands behind what was drawn.
store::Record LayerTuner::reduced(const LayerProblem& problem, std::size_t sample, store::Record record) const {
  if (is_held_back(sample)) return record;
  if (!needs_targets_[number(problem)] && record.size() == 2)
    record.pop_back();  // the float model ran for other layers
  if (!problem.sums || !options_.device.is_cpu()) return record;
  const auto targets = problem.needs_targets ? data::floats(record[1]) : std::span<const float>();
  const std::size_t number = sample - sample / kHeldBackEvery;  // among those that are fitted to
  auto drawn = problem.sums->drawn(number, record[0].shape, data::floats(record[0]), targets);
  const auto count = [](const auto& some) { return some.inputs.values.size() + some.targets.values.size(); };
  const auto whole = data::floats(record[0]).size() + targets.size();
  if (!drawn || count(*drawn) >= whole) return record;
  const auto kept = std::make_shared<DrawnPatches>(std::move(*drawn));
  const auto array = [&](const Tile& tile) -> data::Array {
    const Shape shape{static_cast<std::int64_t>(tile.capacity), static_cast<std::int64_t>(tile.rows)};
    return {record[0].type, shape, std::as_bytes(std::span<const float>(tile.values)), kept};
  };
  return {array(kept->inputs), array(kept->targets), {}};
}

void LayerTuner::finish_samples(LayerProblem& problem) {
  if (problem.sums) problem.form = problem.sums->take();
  problem.sums.reset();
}

data::Array LayerTuner::mixed_targets(const LayerProblem& problem, const store::Record& record) const {
  const auto outputs = std::make_shared<std::vector<float>>(
      symmetric_targets(problem.weights, problem.geometry, problem.bias, record[0].shape, data::floats(record[0]),
                        kernels_, thread_count(options_.threads)));
  const auto exact = problem.needs_targets ? data::floats(record[1]) : std::span<const float>();
  const float share = share_of_asymmetric(problem.positions_per_weight, problem.weights.levels());
  for (std::size_t i = 0; i < exact.size(); ++i) (*outputs)[i] += share * (exact[i] - (*outputs)[i]);
  return {record[0].type, problem.geometry.output_shape(record[0].shape),
          std::as_bytes(std::span<const float>(*outputs)), outputs};
}

std::filesystem::path LayerTuner::state_file(const LayerProblem& problem) const {
  // Of these rows: another number of ranks has other ones.
  return options_.directory / fmt::format("solving-{}-of-{}", number(problem), shim::size_of(options_.ranks));
}

void LayerTuner::begin(LayerProblem& problem, const store::Record& record) {
  const auto& shape = record[0].shape;
  const auto records = records_[number(problem)];
  const auto threads = thread_count(options_.threads);
  problem.geometry = geometry_of(float_, *problem.layer, shape);
  problem.weights = weights_of(float_, quantized_, *problem.layer, problem.geometry);
  problem.bias = bias_of(float_, *problem.layer);
  problem.needs_targets = needs_targets_[number(problem)];
  problem.positions_per_weight = positions_per_weight(problem.geometry, shape, records);
  problem.streamed = is_streamed(problem.geometry, shape, records, options_.config, threads);
  solver_.check_memory(fmt::format("fine-tuning {} '{}'", problem.layer->op_type, problem.layer->name),
                       problem.geometry, shape, problem.streamed, options_.config);
  const std::string name = fmt::format("layer-{}", number(problem));
  if (problem.streamed) {
    problem.stored = std::make_unique<StoredSamples>(options_.spool, name);
  } else {
    check_memory(problem, gram_cost(problem.geometry, shape, 1, options_.config, threads).bytes);
    problem.sums.emplace(
        problem.geometry, options_.config, records,
        [&solver = solver_, geometry = problem.geometry, threads] { return solver.sums(geometry, threads); });
  }
  problem.held_back = std::make_unique<StoredSamples>(options_.spool, name + "-held-back");
}

void LayerTuner::check_memory(const LayerProblem& problem, std::uint64_t needed) const {
  const std::uint64_t most = options_.memory.layers.at(number(problem));
  if (needed <= most) return;
  const auto [need, left] = format_sizes(needed, most);
  throw resource_error(fmt::format("fine-tuning {} '{}' needs {} of memory, but only {} of the budget are left",
                                   problem.layer->op_type, problem.layer->name, need, left),
                       "raise --memory-budget, or give --set finetune-form=streamed");
}

// A layer in a body that no sample came to: it stays as it is.
SolvedLayer LayerTuner::unsolved(const LayerProblem& problem) const {
  SolvedLayer solved;
  solved.tuning = {.name = problem.layer->name, .op_type = problem.layer->op_type, .seen = false};
  solved.integers = stored_integers(quantized_, *problem.layer);
  return solved;
}

SolvedLayer LayerTuner::solve(LayerProblem& problem) {
  const auto start = Clock::now();
  const auto& layer = *problem.layer;
  if (problem.fitted == 0) return unsolved(problem);
  std::optional<LayerState> state;
  if (options_.state_seconds) state.emplace(state_file(problem), *options_.state_seconds);
  const SolveControl control{thread_count(options_.threads), options_.stop, [this](std::size_t, double) { report_(); },
                             state ? &*state : nullptr, shares_rows() ? options_.ranks : nullptr};
  FinetuneConfig config = options_.config;
  config.update_bias = config.update_bias && layer.stored_bias;
  config.update_scale = config.update_scale && layer.owns_scale;
  config.damping = damping_for(config.damping, problem.positions_per_weight);
  Found found = search(problem, config, control);
  limit_pair_sums(problem.weights, found.solution.integers);
  SolvedLayer solved;
  solved.tuning = {.name = layer.name, .op_type = layer.op_type, .streamed = problem.streamed};
  solved.tuning.tuned = judge(problem, control, found);
  solved.tuning.error_before = found.nearest_error;
  solved.tuning.error_after = found.error;
  solved.integers = stored_integers(quantized_, layer, problem.geometry, found.solution.integers);
  if (solved.tuning.tuned && found.fitted) {
    solved.scales = stored_scales(quantized_, layer, *found.fitted);
    if (layer.stored_bias) solved.bias = stored_bias(quantized_, layer, found.solution.bias, solved.scales.bias);
  } else if (solved.tuning.tuned && config.update_bias) {
    solved.bias = stored_bias(quantized_, layer, found.solution.bias, {});
  }
  solved.tuning.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  problem.stored.reset();
  problem.held_back.reset();
  problem.weights = {};
  return solved;
}

LayerTuner::Found LayerTuner::search(LayerProblem& problem, const FinetuneConfig& config, const SolveControl& control) {
  if (!problem.streamed) return search_form(problem, config, control);
  const auto& weights = problem.weights;
  Found found;
  found.solution = solver_.solve_streamed(weights, problem.geometry, problem.bias, *problem.stored, config, control);
  if (config.update_scale) {
    const auto sums =
        sums_of_outputs_and_targets(weights, problem.geometry, found.solution, *problem.stored, kernels_, control);
    fit(problem, config, sums, found);
  }
  return found;
}

LayerTuner::Found LayerTuner::search_form(LayerProblem& problem, const FinetuneConfig& config,
                                          const SolveControl& control) {
  const auto& weights = problem.weights;
  const auto& bias = problem.bias;
  Found found;
  GramFormOrRawInputs form = *std::exchange(problem.form, std::nullopt);
  const bool judged = problem.judges > 0;
  const bool integers_only =
      find_solver(config.rounding)->takes_symmetric_form && coordinate_sweeps(config) == 0 && judged;
  const float share = problem.needs_targets ? share_of_asymmetric(problem.positions_per_weight, weights.levels()) : 0;
  set_targets(form, weights, bias, {share, config.update_bias, integers_only}, kernels_, control.threads);
  found.solution = solver_.solve(weights, form, bias, config, control);
  if (config.update_scale) {
    const auto& gram = std::get<GramForm>(form);
    fit(problem, config, sums_of_outputs_and_targets(weights, gram, found.solution, control.threads), found);
  }
  if (!judged) {
    found.nearest_error = mean_squared_output_error(weights, form, nearest(weights, bias), kernels_);
    found.error = mean_squared_output_error(found.fitted ? *found.fitted : weights, form, found.solution, kernels_);
  }
  return found;
}

void LayerTuner::fit(const LayerProblem& problem, const FinetuneConfig& config, const OutputSums& sums,
                     Found& found) const {
  auto weights = problem.weights;
  auto solution = found.solution;
  fit_scales(sums, config.update_bias, weights, solution);
  if (!holds_bias(stored_scales(quantized_, *problem.layer, weights), solution.bias)) return;
  found.fitted = std::move(weights);
  found.solution = std::move(solution);
}

double LayerTuner::error_of(const LayerProblem& problem, const QuantizedWeights& weights, const Solution& solution,
                            LayerSamples& samples, const SolveControl& control) const {
  if (problem.judges == 0 || !problem.judged_apart)
    return solver_.reconstruction_error(weights, problem.geometry, solution, samples, control);
  const auto mine = sample_errors(weights, problem.geometry, solution, samples, kernels_, control);
  return mean_of(in_order_of_samples(mine, problem.judges, {options_.ranks, options_.stop}));
}

/// Whether what was found is better than nearest rounding, which otherwise takes its place.
bool LayerTuner::judge(const LayerProblem& problem, const SolveControl& control, Found& found) const {
  if (problem.judges == 0 && !problem.stored) return found.error < found.nearest_error;
  auto& samples = problem.judges > 0 ? *problem.held_back : *problem.stored;
  auto kept =
      keep_if_better(problem.weights, problem.bias, found.fitted ? *found.fitted : problem.weights,
                     std::move(found.solution), [&](const QuantizedWeights& weights, const Solution& candidate) {
                       return error_of(problem, weights, candidate, samples, control);
                     });
  found.nearest_error = kept.nearest_error;
  found.error = kept.error;
  found.solution = std::move(kept.solution);
  return kept.tuned;
}

}  // namespace detent::solve
