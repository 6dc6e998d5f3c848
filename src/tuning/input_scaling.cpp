#include "tuning/input_scaling.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "finetune/block_solver.h"
#include "finetune/input_scales.h"
#include "tuning/some_columns.h"

namespace detent::tuning {
namespace {

std::vector<float> scaled(const finetune::Gram& gram, std::span<const float> factors) {
  std::vector<float> values(gram.values.begin(), gram.values.end());
  for (std::size_t i = 0; i < gram.rows; ++i) {
    for (std::size_t j = 0; j < gram.rows; ++j) values[i * gram.rows + j] /= factors[i] * factors[j];
  }
  return values;
}

// Of some columns, solved with these factors.
double error_of(std::vector<float> columns, const InputGrams& grams, std::span<const float> factors,
                const quantization::BlockFormat& format, const WeightSolvingOptions& options) {
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] *= factors[i % factors.size()];
  const ScaledGrams of_scaled(grams, factors);
  const auto by = of_scaled.grams();
  return finetune::BlockSolver(by.fitted, by.held_back, format, {.method = method_of_trials(options.method)},
                               options.kernels, options.threads)
      .solve(columns)
      .error;
}

}  // namespace

ScaledGrams::ScaledGrams(const InputGrams& grams, std::span<const float> factors)
    : rows_(grams.fitted.rows), fitted_{scaled(grams.fitted, factors), grams.fitted.positions} {
  if (grams.held_back) held_back_ = Sums{scaled(*grams.held_back, factors), grams.held_back->positions};
}

InputGrams ScaledGrams::grams() const {
  InputGrams made{{fitted_.values, rows_, fitted_.positions}, {}};
  if (held_back_) made.held_back = finetune::Gram{held_back_->values, rows_, held_back_->positions};
  return made;
}

InputScaling choose_scaling(const onnx::Model& model, const quantization::BlockPlacement& placement,
                            const quantization::InputFold& fold, const InputGrams& grams,
                            const WeightSolvingOptions& options) {
  const auto& format = placement.tensors[fold.tensors.front()].format;
  std::vector<float> columns;
  for (const auto t : fold.tensors) {
    const auto& shape = placement.tensors[t];
    if (shape.format != format) return {};
    const auto more = some_columns(model.graph.initializers[shape.initializer], shape);
    columns.insert(columns.end(), more.begin(), more.end());
  }
  const auto found = finetune::best_input_scales(grams.fitted, columns, format, true, options.kernels, options.threads);
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

std::vector<quantization::InputFold> folds_of(const onnx::Model& model, const quantization::BlockPlacement& placement,
                                              const WeightsOnlyConfig& config) {
  const bool scales = config.method == WeightMethod::awq || config.method == WeightMethod::automatic;
  if (!scales || config.sparsity != WeightSparsity::none) return {};
  return quantization::input_folds(model, placement);
}

void save_scaling(const std::filesystem::path& path, const InputScaling& scaling) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&scaling.exponent, 1)));
  file.write(std::as_bytes(std::span(scaling.factors)));
  file.commit();
}

InputScaling load_scaling(const std::filesystem::path& path, std::int64_t rows) {
  const auto file = MappedFile::open(path, "choice of factors");
  const auto bytes = file->bytes();
  const std::size_t most = sizeof(double) + static_cast<std::size_t>(rows) * sizeof(float);
  if (bytes.size() != most && bytes.size() != sizeof(double))
    throw bad_input(fmt::format("the saved choice of factors '{}' is damaged", path.string()), "run without --resume");
  InputScaling scaling;
  std::memcpy(&scaling.exponent, bytes.data(), sizeof(double));
  scaling.factors.resize((bytes.size() - sizeof(double)) / sizeof(float));
  if (!scaling.factors.empty())
    std::memcpy(scaling.factors.data(), bytes.data() + sizeof(double), scaling.factors.size() * sizeof(float));
  return scaling;
}

}  // namespace detent::tuning
