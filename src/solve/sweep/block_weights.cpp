#include "solve/sweep/block_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/failpoint.h"
#include "base/fingerprint.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/sweep/weight_solving.h"

namespace detent::solve {
namespace fs = std::filesystem;
namespace {

constexpr std::byte kKnown{1};

class Solving final : public GramReceiver {
 public:
  Solving(const onnx::Model& model, const quantization::BlockPlacement& placement,
          const std::vector<BlockStage>& stages, const BlockSolving& options)
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
      if (!paths::exists(file_of(fold))) continue;
      auto scaling = load_scaling(file_of(fold), placement_.tensors[fold.tensors.front()].rows);
      if (!scaling.factors.empty()) solved_.scalings.emplace_back(fold, std::move(scaling));
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
    if (paths::exists(path)) return load_scaling(path, static_cast<std::int64_t>(grams.fitted.rows));
    const auto chosen = choose_scaling(model_, placement_, *fold, grams, solving());
    save_scaling(path, chosen);
    made_.push_back(path.filename().string());
    failpoint("weights.factors");
    return chosen;
  }

  void find_earlier(const std::vector<BlockStage>& stages) {
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
  const quantization::BlockPlacement& placement_;
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

}  // namespace

SolvedBlocks solve_blocks(const onnx::Model& model, const graph::ValueTypes& types,
                          const quantization::BlockPlacement& placement, const std::vector<BlockStage>& stages,
                          const exec::Runtime& runtime, data::SampleSource& source, const BlockSolving& options) {
  Solving solving(model, placement, stages, options);
  const auto samples = sweep_grams(model, types, stages, runtime, source, options.sweep, solving);
  return solving.take(samples);
}

}  // namespace detent::solve
