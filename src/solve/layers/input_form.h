// The input form of a layer's problem: its inputs and targets at each position, for layers with few positions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/gram.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/reduced_inputs.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// The terms that a Gram form sums up. The Gram matrix of N positions has rank N: where N is far below fan_in, matrices
/// of N × fan_in and N × N replace those of fan_in × fan_in.
struct RawInputs {
  std::size_t positions = 0;
  std::vector<float> inputs;   // [positions, fan_in]; empty where there are pixels
  std::vector<float> targets;  // [outputs, positions]; empty: symmetric, with the bias as it is
  Pixels pixels;
};

using GramFormOrRawInputs = std::variant<GramForm, RawInputs>;

/// Up to how many positions the input form is used; above, or where it is 0, the Gram form is. It depends on the
/// geometry and on the method: up to there, the input form takes less memory and time.
std::size_t most_positions(const LayerGeometry& geometry, const FinetuneConfig& config);

/// So many times as many positions cost the same by ShiftedSums, if they are all of a sample.
inline constexpr std::size_t kTimesByShifts = 3;

/// The most positions of all samples together that a Gram matrix is summed over. Positions of one sample are similar:
/// beyond a multiple of fan_in, more of them change the sums less than other samples would.
std::size_t gram_positions(const LayerGeometry& geometry);

/// Takes samples as GramAccumulator does, and makes the form that is cheaper for the number of positions. Where the
/// expected `samples` have more positions than gram_positions(), it draws the same number from each by config.seed,
/// spread over the sample; or it takes all, up to three times as many, where ShiftedSums make that cheaper.
class FormAccumulator {
 public:
  /// `make_sums` is called once where a Gram form is needed.
  using MakeSums = std::function<std::unique_ptr<GramSums>()>;
  FormAccumulator(const LayerGeometry& geometry, const FinetuneConfig& config, std::uint64_t samples,
                  MakeSums make_sums);
  /// Sums on the CPU.
  FormAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads,
                  const FinetuneConfig& config, std::uint64_t samples);

  /// `target` is empty in all samples where targets are symmetric.
  void add(const Shape& input_shape, std::span<const float> input, std::span<const float> target);
  /// What it would take of the sample that is the `number`-th to be added, once a Gram matrix is being summed up, so
  /// that the rest need not come here: nothing before that, and where it would take all.
  std::optional<DrawnPatches> drawn(std::uint64_t number, const Shape& input_shape, std::span<const float> input,
                                    std::span<const float> target) const;
  /// The next sample, of which so many positions were drawn.
  void add_drawn(std::size_t positions, std::span<const float> inputs, std::span<const float> targets);
  /// The form of all that was added. The accumulator cannot be used again.
  GramFormOrRawInputs take();

 private:
  struct Sample {
    Shape shape;
    std::vector<float> input, target;
    std::vector<std::size_t> positions;  // that are taken of it
  };

  std::vector<std::size_t> positions_of(std::uint64_t number, const Shape& input_shape, bool has_target) const;
  void begin_gram();
  Pixels pixels() const;
  void sum(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
           std::span<const std::size_t> positions);

  LayerGeometry geometry_;
  MakeSums make_sums_;
  std::size_t most_;
  std::size_t most_of_sample_;
  std::uint64_t seed_;
  std::size_t count_ = 0;  // of samples
  std::size_t positions_ = 0;
  std::vector<Sample> samples_;  // while there are few positions
  std::unique_ptr<GramSums> gram_;
};

/// Whether the method has an input form, and whether it is cheaper for a layer with so many groups and this fan-in.
bool inputs_pay(std::size_t groups, std::size_t fan_in, const FinetuneConfig& config);

/// As solve() of solver.h, by GPTQ.
Solution solve(const QuantizedWeights& weights, const RawInputs& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);

/// GPTQ for a symmetric Gram form whose matrix has low rank, up to what damping hides anyway; else nothing.
std::optional<Integers> gptq_on_inputs(const QuantizedWeights& weights, const GramForm& form,
                                       const FinetuneConfig& config, const Kernels& kernels,
                                       const SolveControl& control);

/// For whichever form it is; the error is the mean over all output elements.
Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
double mean_squared_output_error(const QuantizedWeights& weights, const GramFormOrRawInputs& form,
                                 const Solution& solution, const Kernels& kernels);

// The targets of a layer's reconstruction. Symmetric: what the layer's float weights give for the quantized branch's
// inputs. Asymmetric: the float branch's outputs, which also compensate for the layers before. The two can be mixed.

/// The share of asymmetric targets, by the number of positions for each weight of an output: 0 up to 24, 1/2 for 128
/// (64 where weights have 16 levels), and so on. With few positions, asymmetric targets make a layer overfit: errors on
/// other samples grow.
float asymmetric_share(double positions_per_weight, std::int32_t levels = 256) noexcept;

/// GPTQ's damping for that many positions: few positions underestimate the power of most directions. It is ten times
/// the given damping for the fewest positions, twice for 64 per weight, and falls towards the given one.
double damping_for(double given, double positions_per_weight) noexcept;

/// Positions of `samples` inputs of this shape, divided by the fan-in.
double positions_per_weight(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples);

/// Outputs of the float weights for one input of this shape, in the layer's layout; `bias` may be empty.
std::vector<float> symmetric_targets(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                     std::span<const float> bias, const Shape& input_shape,
                                     std::span<const float> input, const Kernels& kernels, std::size_t threads);

struct TargetMixture {
  float asymmetric_share = 0;
  bool best_bias = false;
  bool integers_only = false;  // the form is only used for one pass of a solver with takes_symmetric_form
};

/// Replaces a form's targets, which are asymmetric, by the mixture. With `best_bias` the mean of each output stays that
/// of the asymmetric targets: one number for each output cannot overfit. An input form has so few positions that the
/// share is 0.
void set_targets(GramFormOrRawInputs& form, const QuantizedWeights& weights, std::span<const float> bias,
                 const TargetMixture& aim, const Kernels& kernels, std::size_t threads);

}  // namespace detent::solve
