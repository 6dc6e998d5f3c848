#include "solve/sweep/weight_solving.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "profile/meters.h"
#include "quantization/blocks/block_stream.h"
#include "solve/blocks/block_solver.h"
#include "solve/blocks/sparsity.h"
#include "solve/sweep/some_columns.h"

namespace detent::solve {
namespace {

constexpr auto kTogether = static_cast<std::int64_t>(kColumnsTogether);
constexpr std::array<std::string_view, 3> kMethodNames{"nearest", "search", "gptq"};

class WeightSolving {
 public:
  WeightSolving(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                const WeightSolvingOptions& options)
      : tensor_(tensor), shape_(shape), grams_(grams), options_(options), method_(solver_of(options.method)) {}

  BlockVerdict run(BlockWriter& writer) {
    const bool sparse = options_.sparsity != WeightSparsity::none && shape_.tables.empty();
    BlockVerdict verdict;
    if (sparse) verdict.dense_error = dense_error();
    verdict.output_error = sparse ? solve_pruned(writer) : solve_unpruned(&writer);
    const auto most = std::max_element(counts_.begin(), counts_.end()) - counts_.begin();
    verdict.method = kMethodNames[static_cast<std::size_t>(most)];
    return verdict;
  }

 private:
  struct Solve {
    std::function<BlockSolution(std::span<const float> columns)> all;               // by the method
    std::function<quantization::BlockWeight(std::span<const float> columns)> gptq;  // without errors
  };

  BlockSolver solver(bool keep_zeros) const {
    return {grams_.fitted,    grams_.held_back, shape_.format, {.method = method_, .keep_zeros = keep_zeros},
            options_.kernels, options_.threads};
  }

  double dense_error() {
    const double error = solve_unpruned(nullptr);
    counts_ = {};
    return error;
  }

  double solve_unpruned(BlockWriter* writer) {
    const auto dense = solver(false);
    return solve_all({[&](std::span<const float> columns) { return dense.solve(columns); },
                      [&](std::span<const float> columns) { return dense.rounded(columns); }},
                     writer);
  }

  double solve_pruned(BlockWriter& writer) {
    const Damping damping(grams_.fitted, usual_damping(grams_.fitted.positions));
    const TwoOfFour sparsity(grams_.fitted, damping, {}, options_.kernels, options_.threads);
    const auto rest = solver(true);
    return solve_all({[&](std::span<const float> columns) { return rest.solve(sparsity.prune(columns), columns); },
                      [&](std::span<const float> columns) { return rest.rounded(sparsity.prune(columns)); }},
                     &writer);
  }

  // The sum of squared errors over that of squares. Where some columns of a weight of many gain hardly anything by the
  // other rungs, the rest go without them and without being judged: that costs more than solving.
  double solve_all(const Solve& solve, BlockWriter* writer) {
    constexpr double kHardly = 1.01;
    constexpr std::int64_t kMany = 1024;
    if (method_ == BlockMethod::automatic && shape_.columns > kMany) {
      const auto columns = representative_columns(tensor_, shape_);
      const auto tried = solve.all(columns);
      if (tried.error_gptq <= kHardly * tried.error) {
        counts_[static_cast<std::size_t>(BlockMethod::gptq)] = shape_.columns;
        if (writer != nullptr) for_each_stripe([&](std::span<const float> stripe) { writer->add(solve.gptq(stripe)); });
        const double energy = energy_of(columns);
        return energy > 0 ? tried.error_gptq / energy : 0;
      }
    }
    double error = 0, energy = 0;
    for_each_stripe([&](std::span<const float> columns) {
      const auto solution = solve.all(columns);
      error += solution.error;
      energy += energy_of(columns);
      count_methods(solution);
      if (writer != nullptr) writer->add(solution.weight);
    });
    return energy > 0 ? error / energy : 0;
  }

  // As many as keep all threads busy, so far as memory allows.
  std::int64_t pieces_at_a_time() const {
    constexpr std::int64_t kValues = std::int64_t{1} << 22;
    const std::int64_t wanted =
        std::max(kValues / shape_.rows / kTogether, static_cast<std::int64_t>(options_.threads));
    if (!options_.memory_budget) return wanted;
    const auto taken = profile::memory_now().resident + tensor_.data.size();  // columns lie all over the weight
    const auto left = *options_.memory_budget > taken ? *options_.memory_budget - taken : 0;
    return std::clamp(static_cast<std::int64_t>(left / memory_of_piece(shape_.rows)), std::int64_t{1}, wanted);
  }

  // `visit` gets the columns of one after another.
  void for_each_stripe(const std::function<void(std::span<const float> columns)>& visit) const {
    const std::int64_t pieces = pieces_at_a_time();
    for (std::int64_t first = 0; first < shape_.columns; first += pieces * kTogether) {
      if (options_.stop.stop_requested()) throw interrupted();
      const auto last = std::min(first + pieces * kTogether, shape_.columns);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape_.rows));
      quantization::read_columns(tensor_, shape_, first, last, columns);
      visit(columns);
    }
  }

  // The error of storing nothing.
  double energy_of(std::span<const float> columns) const {
    const auto count = static_cast<std::int64_t>(columns.size()) / shape_.rows;
    const auto nothing = quantization::make_blocks(shape_.rows, count, shape_.format);
    double sum = 0;
    for (const double e : column_errors(grams_.judge(), columns, nothing, options_.kernels, options_.threads)) sum += e;
    return sum;
  }

  void count_methods(const BlockSolution& solution) {
    if (method_ != BlockMethod::automatic) {
      counts_[static_cast<std::size_t>(method_)] += solution.weight.columns;
    } else {
      for (const auto method : solution.column_methods) ++counts_[static_cast<std::size_t>(method)];
    }
  }

  const onnx::Tensor& tensor_;
  const quantization::BlockTensor& shape_;
  const InputGrams& grams_;
  const WeightSolvingOptions& options_;
  BlockMethod method_;
  std::array<std::int64_t, kMethodNames.size()> counts_{};
};

}  // namespace

std::uint64_t memory_of_piece(std::int64_t rows) {
  constexpr std::uint64_t kMostArrays = 9;  // of floats, see BlockGptq, TwoOfFour and BlockSolution
  return kMostArrays * sizeof(float) * kColumnsTogether * static_cast<std::uint64_t>(rows);
}

BlockMethod solver_of(WeightMethod method) {
  switch (method) {
    case WeightMethod::nearest: return BlockMethod::nearest;
    case WeightMethod::search:
    case WeightMethod::awq: return BlockMethod::search;
    case WeightMethod::gptq: return BlockMethod::gptq;
    case WeightMethod::automatic: break;
  }
  return BlockMethod::automatic;
}

BlockMethod method_of_trials(WeightMethod method) {
  return method == WeightMethod::automatic ? BlockMethod::gptq : solver_of(method);
}

BlockVerdict solve_weight(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                          const WeightSolvingOptions& options, BlockWriter& writer) {
  return WeightSolving(tensor, shape, grams, options).run(writer);
}

}  // namespace detent::solve
