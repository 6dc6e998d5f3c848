#include "finetune/column_form.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "finetune/lanes.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kLeastFanIn = 256;  // below, the Gram matrix costs next to nothing
constexpr std::size_t kColumnsShare = 4;  // the columns' own matrix is factored anew for each block of weights
constexpr double kLeastDamping = 1e-4;    // that matrix is regular by it alone

// Products keep columns together as they come; those of convolutions are turned.
void append_inputs(const Patches& patches, bool product, std::span<const float> input, float* to) {
  if (product) {
    std::copy(input.begin(), input.end(), to);
    return;
  }
  Tile tile(patches.rows(), tile_columns(patches.rows()), false);
  for (std::size_t at = 0; at < patches.columns(); at += tile.capacity) {
    const std::size_t last = std::min(at + tile.capacity, patches.columns());
    patches.gather(input.data(), {0, patches.rows()}, {at, last}, tile, 0);
    for (std::size_t c = at; c < last; ++c) {
      for (std::size_t r = 0; r < tile.rows; ++r) to[c * tile.rows + r] = tile.row(r)[c - at];
    }
  }
}

double mean_squared_error(const QuantizedWeights& weights, const ColumnForm& form, const Solution& solution,
                          const Kernels& kernels) {
  if (form.columns == 0) return 0;
  const std::size_t n = form.columns, k = weights.columns;
  std::vector<float> values(weights.values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = weights.dequantize(i / k, solution.integers[i]);
  std::vector<float> rest = form.targets;
  Gemm shape;
  shape.transpose_b = true;
  shape.m = static_cast<std::int64_t>(weights.rows);
  shape.n = static_cast<std::int64_t>(n);
  shape.k = static_cast<std::int64_t>(k);
  shape.alpha = -1;
  shape.beta = 1;
  kernels.gemm(shape, values.data(), k, form.inputs.data(), k, rest.data(), n);
  for (std::size_t i = 0; i < rest.size() && !solution.bias.empty(); ++i) rest[i] -= solution.bias[i / n];
  return dot_double(rest.data(), rest.data(), rest.size()) / static_cast<double>(rest.size());
}

}  // namespace

std::size_t most_columns(const LayerGeometry& geometry, const FinetuneConfig& config) {
  const auto fan_in = static_cast<std::size_t>(geometry.fan_in());
  const bool fits = config.rounding == Rounding::gptq && config.damping >= kLeastDamping && geometry.groups == 1 &&
                    fan_in >= kLeastFanIn;
  return fits ? fan_in / kColumnsShare : 0;
}

FormAccumulator::FormAccumulator(const LayerGeometry& geometry, const FinetuneConfig& config, MakeSums make_sums)
    : geometry_(geometry), make_sums_(std::move(make_sums)), most_(most_columns(geometry, config)) {
  if (most_ == 0) begin_gram();
}

FormAccumulator::FormAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads,
                                 const FinetuneConfig& config)
    : FormAccumulator(geometry, config, [geometry, &kernels, threads] {
        return std::make_unique<GramAccumulator>(geometry, kernels, threads);
      }) {}

void FormAccumulator::add(const Shape& input_shape, std::span<const float> input, std::span<const float> target) {
  columns_ += Patches(geometry_, input_shape).columns();
  if (!gram_ && columns_ > most_) begin_gram();
  if (gram_) {
    gram_->add(input_shape, input, target);
  } else {
    samples_.push_back({input_shape, {input.begin(), input.end()}, {target.begin(), target.end()}});
  }
}

// The sequence of columns is the same as if there had been no other form, and so are its sums.
void FormAccumulator::begin_gram() {
  gram_ = make_sums_();
  for (auto& sample : samples_) {
    gram_->add(sample.shape, sample.input, sample.target);
    sample = {};
  }
  samples_.clear();
}

AnyForm FormAccumulator::take() {
  if (gram_) return gram_->take();
  ColumnForm form;
  form.columns = columns_;
  const auto fan_in = static_cast<std::size_t>(geometry_.fan_in());
  form.inputs.resize(columns_ * fan_in);
  Tile targets(static_cast<std::size_t>(geometry_.outputs), columns_, false);
  std::size_t at = 0;
  for (auto& sample : samples_) {
    const Patches patches(geometry_, sample.shape);
    const bool product = geometry_.kind == LayerKind::product;
    if (sample.target.size() != patches.columns() * targets.rows) {
      throw internal_error("a sample does not fit the layer's geometry");
    }
    append_inputs(patches, product, sample.input, form.inputs.data() + at * fan_in);
    if (product) {
      for (std::size_t i = 0; i < sample.target.size(); ++i) {
        *targets.at(i % targets.rows, at + i / targets.rows) = sample.target[i];
      }
    } else {
      patches.gather_outputs(sample.target.data(), {0, targets.rows}, {0, patches.columns()}, targets, at);
    }
    at += patches.columns();
    sample = {};
  }
  form.targets = std::move(targets.values);
  return form;
}

Solution solve(const QuantizedWeights& weights, const AnyForm& any, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  return std::visit([&](const auto& form) { return solve(weights, form, bias, config, kernels, control); }, any);
}

double mean_squared_error(const QuantizedWeights& weights, const AnyForm& any, const Solution& solution,
                          const Kernels& kernels) {
  if (const auto* gram = std::get_if<GramForm>(&any)) return mean_squared_error(weights, *gram, solution);
  return mean_squared_error(weights, std::get<ColumnForm>(any), solution, kernels);
}

}  // namespace detent::finetune
