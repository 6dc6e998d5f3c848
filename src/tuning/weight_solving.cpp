#include "tuning/weight_solving.h"

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "finetune/block_solver.h"
#include "finetune/sparsity.h"
#include "quantization/block_stream.h"

namespace detent::tuning {
namespace {

using finetune::BlockMethod;

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
    verdict.output_error = sparse ? solve_sparse(writer) : solve_dense(&writer);
    const auto most = std::max_element(counts_.begin(), counts_.end()) - counts_.begin();
    verdict.method = kMethodNames[static_cast<std::size_t>(most)];
    return verdict;
  }

 private:
  using Solve = std::function<finetune::BlockSolution(std::span<const float> columns)>;

  finetune::BlockSolver solver(bool keep_zeros) const {
    return {grams_.fitted,    grams_.held_back, shape_.format, {.method = method_, .keep_zeros = keep_zeros},
            options_.kernels, options_.threads};
  }

  double dense_error() {
    const double error = solve_dense(nullptr);
    counts_ = {};
    return error;
  }

  double solve_dense(BlockWriter* writer) {
    const auto dense = solver(false);
    return for_each_stripe([&](std::span<const float> columns) { return dense.solve(columns); }, writer);
  }

  double solve_sparse(BlockWriter& writer) {
    const finetune::Damping damping(grams_.fitted, finetune::usual_damping(grams_.fitted.positions));
    const finetune::TwoOfFour sparsity(grams_.fitted, damping, {}, options_.kernels, options_.threads);
    const auto rest = solver(true);
    return for_each_stripe([&](std::span<const float> columns) { return rest.solve(sparsity.prune(columns), columns); },
                           &writer);
  }

  // The sum of squared errors over that of squares.
  double for_each_stripe(const Solve& solve, BlockWriter* writer) {
    constexpr std::int64_t kValues = std::int64_t{1} << 22;
    constexpr auto kTogether = static_cast<std::int64_t>(finetune::kColumnsTogether);
    const std::int64_t stripe = std::max<std::int64_t>(1, kValues / shape_.rows / kTogether) * kTogether;
    double error = 0, energy = 0;
    for (std::int64_t first = 0; first < shape_.columns; first += stripe) {
      if (options_.stop.stop_requested()) throw interrupted();
      const auto last = std::min(first + stripe, shape_.columns);
      std::vector<float> columns(static_cast<std::size_t>((last - first) * shape_.rows));
      quantization::read_columns(tensor_, shape_, first, last, columns);
      const auto solution = solve(columns);
      error += solution.error;
      energy += energy_of(columns, last - first);
      count_methods(solution, last - first);
      if (writer != nullptr) writer->add(solution.weight);
    }
    return energy > 0 ? error / energy : 0;
  }

  // The error of storing nothing.
  double energy_of(std::span<const float> columns, std::int64_t count) const {
    const auto nothing = quantization::make_blocks(shape_.rows, count, shape_.format);
    double sum = 0;
    for (const double e : finetune::column_errors(grams_.judge(), columns, nothing, options_.kernels, options_.threads))
      sum += e;
    return sum;
  }

  void count_methods(const finetune::BlockSolution& solution, std::int64_t columns) {
    if (method_ != BlockMethod::automatic) {
      counts_[static_cast<std::size_t>(method_)] += columns;
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

}  // namespace detent::tuning
