#include "solve/sweep/block_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "quantization/blocks/block_search.h"
#include "quantization/blocks/block_stream.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_solver.h"

namespace detent::solve {

namespace fs = std::filesystem;

namespace {

constexpr std::byte kKnown{1};

// What inputs are that have been divided by factors, which are referred to.
InputGrams grams_of_scaled_inputs(const InputGrams& grams, std::span<const float> factors) {
  auto made = grams;
  made.fitted.divisors = factors;
  if (made.held_back) std::visit([&](auto& by) { by.divisors = factors; }, *made.held_back);
  return made;
}

// Of some columns, solved with these factors.
double error_of(std::vector<float> columns, const InputGrams& grams, std::span<const float> factors,
                const quantization::BlockFormat& format, const WeightSolvingOptions& options) {
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] *= factors[i % factors.size()];
  const auto by = grams_of_scaled_inputs(grams, factors);
  return BlockSolver(by.fitted, by.held_back, format, {.method = method_of_trials(options.method)}, options.kernels,
                     options.threads)
      .solve(columns)
      .error;
}

// best_input_scales() for all weights that read an input, by some columns of each; these factors and their roots are
// tried with the method itself, and what leaves the least error on held-back samples is taken. Weights of different
// bits are not scaled.
InputScaling choose_scaling(const onnx::Model& model, const quantization::Placement& placement,
                            const quantization::InputFold& fold, const InputGrams& grams,
                            const WeightSolvingOptions& options) {
  const auto& format = placement.tensors[fold.tensors.front()].format;
  std::vector<float> columns;
  for (const auto t : fold.tensors) {
    const auto& shape = placement.tensors[t];
    if (shape.format != format) return {};
    const auto more = representative_columns(model.graph.initializers[shape.initializer], shape);
    columns.insert(columns.end(), more.begin(), more.end());
  }
  const auto found = best_input_scales(grams.fitted, columns, format, true, options.kernels, options.threads);
  if (found.factors.empty()) return {};
  InputScaling best;
  double least = error_of(columns, grams, std::vector<float>(grams.fitted.rows, 1.0F), format, options);
  for (const double share : {1.0, 0.5}) {
    InputScaling trial{found.factors, share * found.exponent};
    for (auto& factor : trial.factors) factor = static_cast<float>(std::pow(factor, share));
    const double error = error_of(columns, grams, trial.factors, format, options);
    if (!(error < least)) continue;
    least = error;
    best = std::move(trial);
  }
  return best;
}

// With awq and automatic those that there are. Sparse weights are not scaled.
std::vector<quantization::InputFold> folds_of(const onnx::Model& model, const quantization::Placement& placement,
                                              const WeightsOnlyConfig& config) {
  const bool scales = config.method == WeightMethod::awq || config.method == WeightMethod::automatic;
  if (!scales || config.sparsity != WeightSparsity::none) return {};
  return quantization::input_folds(model, placement);
}

// None where there is no file, or a damaged one.
std::optional<InputScaling> load_scaling(const std::filesystem::path& path, std::int64_t rows) {
  const auto stored = load_sealed(path, "choice of factors");
  const std::size_t most = sizeof(double) + static_cast<std::size_t>(rows) * sizeof(float);
  if (stored.bytes.size() != most && stored.bytes.size() != sizeof(double)) return std::nullopt;
  InputScaling scaling;
  scaling.factors.resize((stored.bytes.size() - sizeof(double)) / sizeof(float));
  StateReader reader(stored.bytes);
  reader(scaling.exponent);
  reader(scaling.factors);
  return scaling;
}

void save_scaling(const std::filesystem::path& path, const InputScaling& scaling) {
  SealedFile file(path);
  file.write(std::as_bytes(std::span(&scaling.exponent, 1)));
  file.write(std::as_bytes(std::span(scaling.factors)));
  file.finish();
}

class Solving final : public GramReceiver {
 public:
  Solving(const onnx::Model& model, const quantization::Placement& placement, const std::vector<BlockStage>& stages,
          const BlockSolving& options)
      : model_(model),
        placement_(placement),
        options_(options),
        threads_(thread_count(options.sweep.threads)),
        kernels_(cpu_kernels()),
        folds_(options.scale_inputs ? folds_of(model, placement, options.config)
                                    : std::vector<quantization::InputFold>()) {
    solved_.tensors.resize(placement.tensors.size());
    known_.resize(placement.tensors.size());
    find_earlier(stages);
    share_out(stages);
  }

  bool wants(const BlockStage::Input& input) const override {
    if (owners_.at(input.value) != shim::rank_of(options_.ranks)) return false;
    return std::any_of(input.tensors.begin(), input.tensors.end(), [&](std::size_t t) { return known_[t] != kKnown; });
  }

  void receive(const BlockStage::Input& input, const InputGrams& grams) override {
    const auto scaling = scaling_of(input.value, grams);
    if (scaling.factors.empty()) {
      for (const auto t : input.tensors) solve(t, placement_.tensors[t], grams);
      return;
    }
    const auto of_scaled = grams_of_scaled_inputs(grams, scaling.factors);
    for (const auto t : input.tensors) {
      auto shape = placement_.tensors[t];
      shape.row_factors = scaling.factors;
      solve(t, shape, of_scaled);
    }
  }

  SolvedBlocks take(std::uint64_t samples) {
    solved_.samples = samples;
    gather();
    for (const auto& fold : folds_) {
      auto scaling = load_scaling(file_of(fold), placement_.tensors[fold.tensors.front()].rows);
      if (scaling && !scaling->factors.empty()) solved_.scalings.emplace_back(fold, std::move(*scaling));
    }
    return std::move(solved_);
  }

 private:
  // By what a solution follows from beside the samples, so that runs with other weights in blocks find it, too.
  void identify(Hasher& hasher, std::size_t tensor) const {
    const auto& shape = placement_.tensors[tensor];
    hasher.add(model_.graph.initializers[shape.initializer].name);
    for (const auto number : {std::int64_t{shape.format.bits}, shape.format.block, std::int64_t{shape.by_columns}})
      hasher.add(static_cast<std::uint64_t>(number));
  }

  void identify(Hasher& hasher, const quantization::InputFold& fold) const {
    for (const auto t : fold.tensors) identify(hasher, t);
    if (fold.product) identify(hasher, *fold.product);
  }

  fs::path file_of(std::size_t tensor) const {
    Hasher hasher;
    identify(hasher, tensor);
    for (const auto& fold : folds_) {
      if (std::find(fold.tensors.begin(), fold.tensors.end(), tensor) != fold.tensors.end()) identify(hasher, fold);
    }
    return options_.directory / fmt::format("blocks-{}.bin", hasher.result().text());
  }

  fs::path file_of(const quantization::InputFold& fold) const {
    Hasher hasher;
    identify(hasher, fold);
    return options_.directory / fmt::format("factors-{}.bin", hasher.result().text());
  }

  WeightSolvingOptions solving() const {
    return {.method = options_.config.method,
            .sparsity = options_.config.sparsity,
            .kernels = kernels_,
            .threads = threads_,
            .memory_budget = options_.memory_budget,
            .stop = options_.sweep.stop};
  }

  // Chosen before the first of its weights is solved, and kept for those of a later process.
  InputScaling scaling_of(const std::string& value, const InputGrams& grams) {
    const auto fold = std::find_if(folds_.begin(), folds_.end(), [&](const auto& f) { return f.value == value; });
    if (fold == folds_.end()) return {};
    const auto path = file_of(*fold);
    if (auto earlier = load_scaling(path, static_cast<std::int64_t>(grams.fitted.rows))) return std::move(*earlier);
    const auto chosen = choose_scaling(model_, placement_, *fold, grams, solving());
    save_scaling(path, chosen);
    made_.push_back(path.filename().string());
    failpoint("weights.factors");
    return chosen;
  }

  void find_earlier(const std::vector<BlockStage>& stages) {
    for (const auto& fold : folds_) {  // what was solved with factors that are lost is solved again
      if (load_scaling(file_of(fold), placement_.tensors[fold.tensors.front()].rows)) continue;
      for (const auto t : fold.tensors) paths::remove(file_of(t));
    }
    for (const auto& stage : stages) {
      for (const auto& input : stage.inputs) {
        for (const auto t : input.tensors) {
          if (paths::exists(file_of(t))) load_earlier(t);
        }
      }
    }
  }

  // One that is damaged is solved again.
  void load_earlier(std::size_t t) {
    try {
      load(t);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input) throw;
      paths::remove(file_of(t));
    }
  }

  void load(std::size_t t) {
    solved_.tensors[t].emplace(file_of(t), placement_.tensors[t]);
    known_[t] = kKnown;
    ++done_;
  }

  // What rank 0 found of an earlier process is done; each rank sums up and solves some of the other inputs.
  void share_out(const std::vector<BlockStage>& stages) {
    constexpr double kPositions = 4096;  // that are summed up, and what is found out of a column, beside each column
    if (options_.ranks != nullptr) shim::broadcast(*options_.ranks, known_, options_.sweep.stop);
    std::vector<double> costs;
    std::vector<std::string> values;
    for (const auto& stage : stages) {
      for (const auto& input : stage.inputs) {
        double columns = 0;
        for (const auto t : input.tensors)
          columns += known_[t] == kKnown ? 0 : static_cast<double>(placement_.tensors[t].columns);
        const auto rows = static_cast<double>(input.rows);
        costs.push_back(columns > 0 ? rows * rows * (columns + kPositions) : 0);
        values.push_back(input.value);
      }
    }
    const auto owners = shim::owners_of(costs, shim::size_of(options_.ranks));
    for (std::size_t i = 0; i < owners.size(); ++i) owners_.emplace(values[i], owners[i]);
  }

  void gather() {
    const auto came = shim::gather_files(options_.ranks, options_.directory, made_, options_.sweep.stop);
    const std::set<std::string> names(came.begin(), came.end());
    for (std::size_t t = 0; t < solved_.tensors.size(); ++t) {
      if (names.contains(file_of(t).filename().string())) load(t);
    }
  }

  void solve(std::size_t t, const quantization::BlockTensor& shape, const InputGrams& grams) {
    if (known_[t] == kKnown) return;
    BlockWriter writer(file_of(t), shape);
    writer.finish(solve_weight(model_.graph.initializers[shape.initializer], shape, grams, solving(), writer));
    load(t);
    made_.push_back(file_of(t).filename().string());
    failpoint("weights.solved");
    if (options_.sweep.progress) options_.sweep.progress("solve", done_, placement_.tensors.size());
  }

  const onnx::Model& model_;
  const quantization::Placement& placement_;
  const BlockSolving& options_;
  std::size_t threads_;
  const Kernels& kernels_;
  std::vector<quantization::InputFold> folds_;
  SolvedBlocks solved_;
  std::vector<std::byte> known_;       // of tensors: whether rank 0 or this rank has solved them
  std::map<std::string, int> owners_;  // of inputs, the ranks that solve what reads them
  std::vector<std::string> made_;      // files, by this rank
  std::size_t done_ = 0;
};

using quantization::BlockTensor;
using quantization::BlockWeight;

double sum_of(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

double squared_error(std::span<const float> columns, const BlockWeight& found) {
  std::vector<float> stored(columns.size());
  quantization::dequantize(found, stored);
  double sum = 0;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const double difference = static_cast<double>(columns[i]) - stored[i];
    sum += difference * difference;
  }
  return sum;
}

// Answers for one weight after another, as soon as the sums over what they read are there.
class BitErrorReceiver final : public GramReceiver {
 public:
  BitErrorReceiver(const onnx::Model& model, const quantization::Placement& placement,
                   std::span<const BitQuestion> questions, WeightMethod method, const GramSweepOptions& options)
      : model_(model),
        placement_(placement),
        questions_(questions),
        method_(method),
        options_(options),
        threads_(thread_count(options.threads)),
        kernels_(cpu_kernels()),
        answers_(questions.size()) {
    for (std::size_t q = 0; q < questions.size(); ++q) question_of_[questions[q].tensor] = q;
  }

  bool wants(const BlockStage::Input& input) const override {
    return std::any_of(input.tensors.begin(), input.tensors.end(),
                       [&](std::size_t t) { return question_of_.contains(t); });
  }

  void receive(const BlockStage::Input& input, const InputGrams& grams) override {
    for (const auto t : input.tensors) {
      const auto found = question_of_.find(t);
      if (found == question_of_.end()) continue;
      if (options_.stop.stop_requested()) throw interrupted();
      answers_[found->second] = answer(questions_[found->second], grams);
      ++done_;
      if (options_.progress) options_.progress("errors of bits", done_, questions_.size());
    }
  }

  std::vector<BitErrors> take() { return std::move(answers_); }

 private:
  BitErrors answer(const BitQuestion& question, const InputGrams& grams) const {
    auto shape = placement_.tensors[question.tensor];
    const auto& tensor = model_.graph.initializers[shape.initializer];
    BitErrors found;
    found.nearest = nearest_error(tensor, shape, grams.judge());
    const auto columns = representative_columns(tensor, shape);
    const double energy = sum_of(errors_of(grams.judge(), columns, nothing_of(columns, shape)));
    for (const int bits : question.bits) {
      shape.format.bits = bits;
      const BlockSolver solver(grams.fitted, grams.held_back, shape.format, {.method = method_of_trials(method_)},
                               kernels_, threads_);
      found.of_bits[bits] = energy > 0 ? solver.solve(columns).error / energy : 0;
    }
    return found;
  }

  double nearest_error(const onnx::Tensor& tensor, const BlockTensor& shape, const GramOrInputRows& judge) const {
    constexpr std::int64_t kStripe = 8 * static_cast<std::int64_t>(kColumnsTogether);
    constexpr std::int64_t kMostValues = std::int64_t{1} << 23;
    const auto stripe = std::clamp(kMostValues / std::max<std::int64_t>(shape.rows, 1), std::int64_t{1}, kStripe);
    double error = 0, energy = 0;
    for (std::int64_t first = 0; first < shape.columns; first += stripe) {
      const auto last = std::min(first + stripe, shape.columns);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape.rows));
      quantization::read_columns(tensor, shape, first, last, columns);
      error += sum_of(errors_of(judge, columns, quantization::nearest(columns, shape.rows, shape.format)));
      energy += sum_of(errors_of(judge, columns, nothing_of(columns, shape)));
    }
    return energy > 0 ? error / energy : 0;
  }

  static BlockWeight nothing_of(std::span<const float> columns, const BlockTensor& shape) {
    return quantization::make_blocks(shape.rows, static_cast<std::int64_t>(columns.size()) / shape.rows, shape.format);
  }

  std::vector<double> errors_of(const GramOrInputRows& judge, std::span<const float> columns,
                                const BlockWeight& found) const {
    return column_errors(judge, columns, found, kernels_, threads_);
  }

  const onnx::Model& model_;
  const quantization::Placement& placement_;
  std::span<const BitQuestion> questions_;
  WeightMethod method_;
  const GramSweepOptions& options_;
  std::size_t threads_;
  const Kernels& kernels_;
  std::map<std::size_t, std::size_t> question_of_;  // by tensor
  std::vector<BitErrors> answers_;
  std::size_t done_ = 0;
};

}  // namespace

SolvedBlocks solve_blocks(const onnx::Model& model, const graph::ValueTypes& types,
                          const quantization::Placement& placement, const std::vector<BlockStage>& stages,
                          const exec::Runtime& runtime, data::SampleSource& source, const BlockSolving& options) {
  Solving solving(model, placement, stages, options);
  const auto samples = sweep_grams(model, types, stages, runtime, source, options.sweep, solving);
  return solving.take(samples);
}

BitErrors bit_errors(const onnx::Tensor& tensor, const BlockTensor& shape, std::span<const int> bits,
                     WeightMethod method, std::size_t threads) {
  BitErrors found;
  const quantization::BlockStream all(
      tensor, shape,
      [&](std::span<const float> columns, std::int64_t) {
        return quantization::nearest(columns, shape.rows, shape.format);
      },
      threads);
  const auto sums = all.for_each([](std::int64_t, const BlockWeight&) {});
  found.nearest = sums.squares > 0 ? sums.errors / sums.squares : 0;
  const auto columns = representative_columns(tensor, shape);
  const double energy = squared_error(
      columns,
      quantization::make_blocks(
          shape.rows, static_cast<std::int64_t>(columns.size()) / std::max<std::int64_t>(shape.rows, 1), shape.format));
  std::vector<double> errors(bits.size());
  parallel_for(bits.size(), threads, [&](std::size_t i) {
    auto format = shape.format;
    format.bits = bits[i];
    errors[i] =
        squared_error(columns, method == WeightMethod::nearest ? quantization::nearest(columns, shape.rows, format)
                                                               : quantization::search(columns, shape.rows, format));
  });
  for (std::size_t i = 0; i < bits.size(); ++i) found.of_bits[bits[i]] = energy > 0 ? errors[i] / energy : 0;
  return found;
}

std::vector<BitErrors> bit_errors(const onnx::Model& model, const graph::ValueTypes& types,
                                  const quantization::Placement& placement, std::span<const BitQuestion> questions,
                                  const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                                  data::SampleSource& source, WeightMethod method, const GramSweepOptions& options) {
  BitErrorReceiver asking(model, placement, questions, method, options);
  sweep_grams(model, types, stages, runtime, source, options, asking);
  return asking.take();
}

}  // namespace detent::solve
