#include "solve/sweep/layer_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "solve/layers/solver.h"
#include "solve/solvers.h"

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
  config.damping = damping_for(config.damping, problem.positions_per_weight);
  Found found = search(problem, config, control);
  limit_pair_sums(problem.weights, found.solution.integers);
  SolvedLayer solved;
  solved.tuning = {.name = layer.name, .op_type = layer.op_type, .streamed = problem.streamed};
  solved.tuning.tuned = judge(problem, control, found);
  solved.tuning.error_before = found.nearest_error;
  solved.tuning.error_after = found.error;
  solved.integers = stored_integers(quantized_, layer, problem.geometry, found.solution.integers);
  if (solved.tuning.tuned && config.update_bias) solved.bias = stored_bias(quantized_, layer, found.solution.bias);
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
      find_solver(config.solver)->takes_symmetric_form && coordinate_sweeps(config) == 0 && judged;
  const float share = problem.needs_targets ? share_of_asymmetric(problem.positions_per_weight, weights.levels()) : 0;
  set_targets(form, weights, bias, {share, config.update_bias, integers_only}, kernels_, control.threads);
  SolveControl once = control;
  auto* sums = std::get_if<GramForm>(&form);
  if (integers_only && !config.update_bias && sums != nullptr && sums->symmetric) once.spent = &sums->gram;
  if (judged && sums == nullptr) once.spent = &std::get<RawInputs>(form).inputs;
  found.solution = solver_.solve(weights, form, bias, config, once);
  if (!judged) {
    found.nearest_error = mean_squared_output_error(weights, form, nearest(weights, bias), kernels_);
    found.error = mean_squared_output_error(weights, form, found.solution, kernels_);
  }
  return found;
}

double LayerTuner::error_of(const LayerProblem& problem, const Solution& solution, LayerSamples& samples,
                            const SolveControl& control) const {
  const auto& weights = problem.weights;
  if (problem.judges == 0 || !problem.judged_apart)
    return solver_.reconstruction_error(weights, problem.geometry, solution, samples, control);
  const auto mine = sample_errors(weights, problem.geometry, solution, samples, kernels_, control);
  return mean_of(in_order_of_samples(mine, problem.judges, {options_.ranks, options_.stop}));
}

/// Whether what was found is better than nearest rounding, which otherwise takes its place.
bool LayerTuner::judge(const LayerProblem& problem, const SolveControl& control, Found& found) const {
  if (problem.judges == 0 && !problem.stored) return found.error < found.nearest_error;
  auto& samples = problem.judges > 0 ? *problem.held_back : *problem.stored;
  auto kept = keep_if_better(problem.weights, problem.bias, std::move(found.solution),
                             [&](const Solution& candidate) { return error_of(problem, candidate, samples, control); });
  found.nearest_error = kept.nearest_error;
  found.error = kept.error;
  found.solution = std::move(kept.solution);
  return kept.tuned;
}

namespace {

// Bytes that a rank sends at a time, or one record; the latter in the first rounds, since what a layer takes of a
// sample can be drawn from it by others only once sums have begun.
constexpr std::size_t kTogether = std::size_t{4} << 20;
constexpr std::size_t kSingleRounds = 3;
constexpr std::size_t kAlignment = 16;

// A record in a message: numbers of 8 bytes, which are that of its arrays and for each its type, its dimensions and
// their number, and its bytes; then the bytes. Parts begin at a multiple of kAlignment.
class Packer {
 public:
  void add(const store::Record& record) {
    number(record.size());
    for (const auto& array : record) {
      number(static_cast<std::uint64_t>(array.type));
      number(array.shape.size());
      for (const auto dim : array.shape) number(static_cast<std::uint64_t>(dim));
      number(array.bytes.size());
      align();
      bytes_.insert(bytes_.end(), array.bytes.begin(), array.bytes.end());
      align();
    }
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }

 private:
  void number(std::uint64_t value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void align() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment); }

  std::vector<std::byte> bytes_;
};

// Its records refer to one copy of the message.
class Unpacker {
 public:
  Unpacker(int rank, std::span<const std::byte> bytes)
      : rank_(rank), message_(std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end())) {}

  bool is_at_end() const noexcept { return at_ == message_->size(); }
  store::Record next() {
    store::Record record(count());
    for (auto& array : record) {
      array.type = static_cast<onnx::DataType>(number());
      array.shape.resize(count());
      for (auto& dim : array.shape) dim = static_cast<std::int64_t>(number());
      const auto size = number();
      align();
      array.bytes = part(size);
      array.owner = message_;
      align();
    }
    return record;
  }

 private:
  std::span<const std::byte> part(std::uint64_t size) {
    if (size > message_->size() - at_) throw shim::unexpected_message(rank_, "a record that breaks off");
    const auto found = std::span<const std::byte>(*message_).subspan(at_, size);
    at_ += size;
    return found;
  }
  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  // Of what takes a number each.
  std::size_t count() {
    const auto value = number();
    if (value > (message_->size() - at_) / sizeof value)
      throw shim::unexpected_message(rank_, "a record that breaks off");
    return value;
  }
  void align() { part((kAlignment - at_ % kAlignment) % kAlignment); }

  int rank_;
  std::shared_ptr<const std::vector<std::byte>> message_;
  std::size_t at_ = 0;
};

}  // namespace

std::size_t runner_of(std::size_t sample, std::size_t ranks) {
  const std::size_t held_back_before = sample / kHeldBackEvery;
  return (is_held_back(sample) ? held_back_before : sample - held_back_before) % ranks;
}

SharedSamples::SharedSamples(store::Spool& spool, std::size_t layers, bool keeps_held_back, shim::Team team)
    : spool_(spool),
      lane_(spool.open("shared")),
      layers_(layers),
      keeps_held_back_(keeps_held_back),
      team_(std::move(team)),
      queues_(team_.size()) {}

SharedSamples::~SharedSamples() { spool_.close(lane_); }

bool SharedSamples::travels(std::size_t sample) const { return !keeps_held_back_ || !is_held_back(sample); }

void SharedSamples::put(std::size_t layer, std::size_t sample, store::Record record) {
  spool_.put(lane_, sample * layers_ + layer, std::move(record));
}

store::Record SharedSamples::take_own(std::size_t layer, std::size_t sample) {
  const std::size_t place = sample * layers_ + layer;
  auto record = spool_.get(lane_, place);
  if (!record)
    throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
  spool_.release(lane_, place);
  return std::move(*record);
}

void SharedSamples::exchange_some(std::size_t samples, std::size_t most, const Reduce& reduce) {
  Packer packer;
  for (; sent_ < samples * layers_ && packer.bytes().size() < most; ++sent_) {
    const std::size_t sample = sent_ / layers_;
    if (!is_mine(sample) || !travels(sample)) continue;
    const std::size_t layer = sent_ % layers_;
    queues_[team_.rank()].push_back(reduce(layer, sample, take_own(layer, sample)));
    packer.add(queues_[team_.rank()].back());
  }
  team_.ranks->exchange(
      packer.bytes(),
      [&](int rank, std::span<const std::byte> bytes) {
        Unpacker unpacker(rank, bytes);
        while (!unpacker.is_at_end()) queues_.at(static_cast<std::size_t>(rank)).push_back(unpacker.next());
      },
      team_.stop);
}

void SharedSamples::hand_out(std::size_t samples, const Reduce& reduce, const Take& take) {
  for (std::size_t i = 0; i < samples * layers_; ++i) {
    const std::size_t sample = i / layers_, layer = i % layers_;
    const std::size_t runner = runner_of(sample, team_.size());
    if (!travels(sample)) {
      take(layer, sample, is_mine(sample) ? std::optional(take_own(layer, sample)) : std::nullopt);
      continue;
    }
    auto& queue = queues_[runner];
    const std::size_t most = sample < kSingleRounds * team_.size() ? 1 : kTogether;
    if (queue.empty()) exchange_some(samples, most, reduce);
    if (queue.empty()) throw shim::unexpected_message(static_cast<int>(runner), "too few records");
    take(layer, sample, std::move(queue.front()));
    queue.pop_front();
  }
}

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
