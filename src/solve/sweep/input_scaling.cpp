#include "solve/sweep/input_scaling.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "solve/blocks/block_solver.h"
#include "solve/blocks/input_scales.h"
#include "solve/sweep/some_columns.h"

namespace detent::solve {
namespace {

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

}  // namespace

InputGrams grams_of_scaled_inputs(const InputGrams& grams, std::span<const float> factors) {
  auto made = grams;
  made.fitted.divisors = factors;
  if (made.held_back) std::visit([&](auto& by) { by.divisors = factors; }, *made.held_back);
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

std::vector<quantization::InputFold> folds_of(const onnx::Model& model, const quantization::BlockPlacement& placement,
                                              const WeightsOnlyConfig& config) {
  const bool scales = config.method == WeightMethod::awq || config.method == WeightMethod::automatic;
  if (!scales || config.sparsity != WeightSparsity::none) return {};
  return quantization::input_folds(model, placement);
}

namespace {

Fingerprint checksum(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.result();
}

}  // namespace

// The exponent, the factors where there are any, and the fingerprint of both.
void save_scaling(const std::filesystem::path& path, const InputScaling& scaling) {
  std::vector<std::byte> content(sizeof(double) + scaling.factors.size() * sizeof(float));
  std::memcpy(content.data(), &scaling.exponent, sizeof(double));
  if (!scaling.factors.empty())
    std::memcpy(content.data() + sizeof(double), scaling.factors.data(), content.size() - sizeof(double));
  const auto sum = checksum(content);
  AtomicFile file(path);
  file.write(content);
  file.write(std::as_bytes(std::span(&sum, 1)));
  file.commit();
}

InputScaling load_scaling(const std::filesystem::path& path, std::int64_t rows) {
  const auto file = MappedFile::open(path, "choice of factors");
  auto bytes = file->bytes();
  Fingerprint sum;
  const bool is_whole = bytes.size() >= sizeof(sum);
  if (is_whole) std::memcpy(&sum, bytes.data() + bytes.size() - sizeof(sum), sizeof(sum));
  bytes = bytes.first(bytes.size() - (is_whole ? sizeof(sum) : 0));
  const std::size_t most = sizeof(double) + static_cast<std::size_t>(rows) * sizeof(float);
  const bool fits = bytes.size() == most || bytes.size() == sizeof(double);
  if (!is_whole || !fits || checksum(bytes) != sum)
    throw bad_input(fmt::format("the saved choice of factors '{}' is damaged", path.string()), "run without --resume");
  InputScaling scaling;
  std::memcpy(&scaling.exponent, bytes.data(), sizeof(double));
  scaling.factors.resize((bytes.size() - sizeof(double)) / sizeof(float));
  if (!scaling.factors.empty())
    std::memcpy(scaling.factors.data(), bytes.data() + sizeof(double), scaling.factors.size() * sizeof(float));
  return scaling;
}

}  // namespace detent::solve
