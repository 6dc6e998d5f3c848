// The columns of a layer themselves, for layers that have few of them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "detent/config.h"
#include "finetune/gram.h"
#include "finetune/pixels.h"
#include "finetune/problem.h"
#include "finetune/solver.h"

namespace detent::finetune {

/// What a Gram form is the sum of. The Gram matrix of N columns has rank N: where N is far below fan_in, products with
/// the columns and matrices of N × N say the same as those of fan_in × fan_in.
struct ColumnForm {
  std::size_t columns = 0;
  std::vector<float> inputs;   // columns × fan_in: each column together; empty where there are pixels
  std::vector<float> targets;  // outputs × columns; empty: what the float weights and the bias as it is give
  Pixels pixels;
};

using AnyForm = std::variant<GramForm, ColumnForm>;

/// As many columns as are kept; with more, or where it is 0, the Gram matrix takes their place. By arithmetic from the
/// geometry: kept columns and what is made of them take less memory and time than the matrix.
std::size_t most_columns(const LayerGeometry& geometry, const FinetuneConfig& config);

/// Columns of all samples together that a Gram matrix is made of at most: columns of one sample say much the same, and
/// beyond a multiple of fan_in more of them move its sums by less than other samples would.
std::size_t gram_columns(const LayerGeometry& geometry);

/// Takes samples as GramAccumulator does, and makes the form that is cheaper for as many columns as came. Where
/// `samples` of them have more columns than gram_columns(), it takes as many of each, spread over its positions (which,
/// follows from config.seed), or all of up to three times as many where ShiftedSums make that the cheaper way.
class FormAccumulator {
 public:
  /// `make_sums` is called once where a Gram form is needed.
  using MakeSums = std::function<std::unique_ptr<GramSums>()>;
  FormAccumulator(const LayerGeometry& geometry, const FinetuneConfig& config, std::uint64_t samples,
                  MakeSums make_sums);
  /// Sums on the CPU.
  FormAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads,
                  const FinetuneConfig& config, std::uint64_t samples);

  /// `target` is empty in all samples where targets are the float weights' own.
  void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target);
  /// The form of all that was added. The accumulator cannot be used again.
  AnyForm take();

 private:
  struct Sample {
    Shape shape;
    std::vector<float> input, target;
    std::vector<std::size_t> columns;  // that are taken of it
  };

  void begin_gram();
  Pixels pixels() const;
  void sum(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
           std::span<const std::size_t> columns);

  LayerGeometry geometry_;
  MakeSums make_sums_;
  std::size_t most_;
  std::size_t most_of_sample_;
  std::uint64_t seed_;
  std::size_t count_ = 0;  // of samples
  std::size_t columns_ = 0;
  std::vector<Sample> samples_;  // as long as they are few
  std::unique_ptr<GramSums> gram_;
};

/// Whether GPTQ on columns is defined and pays for a layer of these groups and inputs of one output.
bool columns_pay(std::size_t groups, std::size_t fan_in, const FinetuneConfig& config);

/// solve() of solver.h in this form; for GPTQ only.
Solution solve(const QuantizedWeights& weights, const ColumnForm& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);

/// GPTQ for a Gram form that aims at the float weights themselves, where damping hides all of its matrix but a few
/// columns; else nothing.
std::optional<Integers> gptq_on_few_columns(const QuantizedWeights& weights, const GramForm& form,
                                            const FinetuneConfig& config, const Kernels& kernels,
                                            const SolveControl& control);

/// Both in whichever form it is; the error is the mean over all output elements.
Solution solve(const QuantizedWeights& weights, const AnyForm& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
double mean_squared_error(const QuantizedWeights& weights, const AnyForm& form, const Solution& solution,
                          const Kernels& kernels);

}  // namespace detent::finetune
