#include "finetune/streamed.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "finetune/batch_gradient.h"
#include "finetune/lanes.h"
#include "finetune/soft_rounding.h"
#include "finetune/straight_through.h"

namespace detent::finetune {
namespace {

constexpr std::uint64_t kMixSeed = 0x6d69786572ULL;  // keeps the mix apart from the order
constexpr std::size_t kMixPiece = 1 << 14;           // elements that one thread mixes at a time
constexpr std::size_t kPowerSamples = 8;             // that the inputs' mean square is taken from

/// Which sample comes when: all of them in a random order, then all in another.
class Order {
 public:
  Order(std::size_t count, std::uint64_t seed) : seed_(seed), order_(count) {}

  std::size_t at(std::uint64_t position) {
    const std::uint64_t round = position / order_.size();
    if (round != round_) shuffle(round);
    return order_[position % order_.size()];
  }

 private:
  void shuffle(std::uint64_t round) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[below(i, random_at(seed_, round, i)[0])]);
    }
    round_ = round;
  }

  std::uint64_t seed_;
  std::uint64_t round_ = ~std::uint64_t{0};
  std::vector<std::size_t> order_;
};

/// One sample of a mini-batch, its input mixed of both branches if that is asked for.
struct Drawn {
  SampleRef sample;
  std::vector<float> mixed;
  const float* input() const { return mixed.empty() ? sample.input.data() : mixed.data(); }
};

Drawn draw(LayerSamples& samples, std::size_t index, std::uint64_t position, const FinetuneConfig& config,
           std::size_t threads) {
  Drawn drawn{samples.get(index), {}};
  if (config.drop_ratio >= 1) return drawn;
  const auto& quantized = drawn.sample.input;
  const auto& exact = drawn.sample.float_input;
  if (exact.size() != quantized.size()) throw internal_error("a mix of inputs needs those of the float model");
  const auto limit = static_cast<std::uint64_t>(std::max(config.drop_ratio, 0.0) * 0x1p32);
  drawn.mixed.resize(quantized.size());
  parallel_for((quantized.size() + kMixPiece - 1) / kMixPiece, threads, [&](std::size_t piece) {
    const std::size_t end = std::min((piece + 1) * kMixPiece, quantized.size());
    for (std::size_t i = piece * kMixPiece; i < end; i += 4) {
      const auto random = random_at(config.seed ^ kMixSeed, position, i / 4);
      for (std::size_t k = 0; k < 4 && i + k < end; ++k) {
        drawn.mixed[i + k] = random[k] < limit ? quantized[i + k] : exact[i + k];
      }
    }
  });
  return drawn;
}

double mean_square(LayerSamples& samples) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < std::min(samples.count(), kPowerSamples); ++i) {
    const SampleRef sample = samples.get(i);
    sum += dot_double(sample.input.data(), sample.input.data(), sample.input.size());
    count += static_cast<double>(sample.input.size());
  }
  return count > 0 ? sum / count : 0;
}

/// A piece of the rows: a layer of its own, with its buffers.
struct Piece {
  RowRange rows;
  BatchGradient gradient;
  std::vector<float> weights;
  std::vector<float> by_weights;
  std::vector<float> by_bias;
  double loss = 0;
};

class Problem {
 public:
  Problem(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
          LayerSamples& samples, const Activation& activation, const FinetuneConfig& config, const Kernels& kernels,
          const SolveControl& control)
      : weights_(weights),
        samples_(samples),
        config_(config),
        control_(control),
        order_(samples.count(), config.seed),
        bias_(bias.begin(), bias.end()),
        bias_mean_(bias.size()),
        bias_square_(bias.size()),
        power_(mean_square(samples)) {
    if (config.rounding == Rounding::adaround) {
      soft_.emplace(weights);
    } else {
      through_.emplace(weights);
    }
    const auto groups = static_cast<std::size_t>(geometry.groups);
    for (const RowRange rows : row_ranges(weights.rows, groups, weights.columns)) {
      const std::size_t count = rows.count() * weights.columns;
      pieces_.push_back({rows, BatchGradient(geometry, rows, activation, kernels), std::vector<float>(count),
                         std::vector<float>(count), std::vector<float>(rows.count())});
    }
  }

  /// One step; its loss.
  double iterate(std::size_t iteration) {
    check_stop(control_);
    const std::size_t size = std::max<std::size_t>(config_.batch_size, 1);
    std::vector<Drawn> batch;
    std::size_t columns = 0;
    for (std::size_t b = 0; b < size; ++b) {
      const std::uint64_t position = static_cast<std::uint64_t>(iteration) * size + b;
      batch.push_back(draw(samples_, order_.at(position), position, config_, control_.threads));
      columns += batch.back().sample.target.size() / weights_.rows;
    }
    if (columns == 0) return 0;
    const auto factor = 1 / static_cast<float>(columns);
    parallel_for(pieces_.size(), control_.threads, [&](std::size_t i) {
      descend(pieces_[i], batch, factor);
      update(pieces_[i], iteration);
    });
    double loss = 0;
    for (const Piece& piece : pieces_) loss += piece.loss;
    return loss / static_cast<double>(columns);
  }

  bool decided() const { return soft_ && soft_->decided({0, weights_.rows}); }
  Solution solution() const { return {soft_ ? soft_->integers() : through_->integers(), bias_}; }

 private:
  void descend(Piece& piece, const std::vector<Drawn>& batch, float factor) const {
    const std::size_t k = weights_.columns;
    for (std::size_t m = piece.rows.first, at = 0; m < piece.rows.last; ++m) {
      const float scale = weights_.scale[m];
      for (std::size_t j = 0; j < k; ++j, ++at) {
        piece.weights[at] =
            scale * (soft_ ? static_cast<float>(soft_->base()[m * k + j] - weights_.zero[m]) + soft_->h(m)[j]
                           : through_->q(m)[j]);
      }
    }
    std::fill(piece.by_weights.begin(), piece.by_weights.end(), 0.0F);
    std::fill(piece.by_bias.begin(), piece.by_bias.end(), 0.0F);
    piece.loss = 0;
    for (const Drawn& drawn : batch) {
      piece.loss += piece.gradient.add(drawn.sample.input_shape, drawn.input(), drawn.sample.target.data(),
                                       piece.weights.data(), bias_.empty() ? nullptr : bias_.data() + piece.rows.first,
                                       factor, piece.by_weights.data(), trains_bias() ? piece.by_bias.data() : nullptr);
    }
  }

  void update(Piece& piece, std::size_t iteration) {
    const std::size_t k = weights_.columns;
    const SoftStep soft_step = SoftStep::at(config_, iteration);
    const AdamStep adam = through_adam(config_, iteration);
    for (std::size_t m = piece.rows.first; m < piece.rows.last; ++m) {
      const float* slope = piece.by_weights.data() + (m - piece.rows.first) * k;
      if (soft_) {
        const float scale = weights_.scale[m];
        soft_->step(m, slope, nullptr, scale, certainty_weight(scale, power_), soft_step);
      } else {
        through_->step(m, slope, nullptr, 1.0F, adam);
      }
      if (trains_bias()) {
        bias_[m] += adam.change(piece.by_bias[m - piece.rows.first], bias_mean_[m], bias_square_[m]);
      }
    }
  }

  bool trains_bias() const noexcept { return config_.update_bias && !bias_.empty() && through_.has_value(); }

  const QuantizedWeights& weights_;
  LayerSamples& samples_;
  const FinetuneConfig& config_;
  const SolveControl& control_;
  Order order_;
  std::optional<SoftRounding> soft_;
  std::optional<StraightThrough> through_;
  std::vector<float> bias_;
  std::vector<float> bias_mean_, bias_square_;
  double power_;
  std::vector<Piece> pieces_;
};

}  // namespace

Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const Activation& activation, const FinetuneConfig& config,
                        const Kernels& kernels, const SolveControl& control) {
  if (config.rounding == Rounding::gptq) throw usage_error("GPTQ has no streamed form", "let the form be chosen");
  if (config.rounding == Rounding::nearest || samples.count() == 0) return nearest(weights, bias);
  Problem problem(weights, geometry, bias, samples, activation, config, kernels, control);
  double last_loss = 0;
  std::size_t begin = 0;
  for (const std::size_t end : checkpoints(config.num_iterations)) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += problem.iterate(i);
    const double loss = sum / static_cast<double>(end - begin);
    if (control.progress) control.progress(end, loss);
    const bool no_better = begin > 0 && config.rounding == Rounding::adaquant && !(loss < last_loss);
    if (config.early_stop && (no_better || problem.decided())) break;
    last_loss = loss;
    begin = end;
  }
  Solution solution = problem.solution();
  if (config.rounding == Rounding::adaround && config.update_bias && !bias.empty() &&
      activation.kind == ActivationKind::none) {
    solution.bias = streamed_bias(weights, geometry, solution, samples, kernels, control);
  }
  return solution;
}

}  // namespace detent::finetune
