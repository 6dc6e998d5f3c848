#include "solve/sweep/bit_errors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "quantization/blocks/block_search.h"
#include "quantization/blocks/block_stream.h"
#include "solve/blocks/block_solver.h"
#include "solve/sweep/some_columns.h"
#include "solve/sweep/weight_solving.h"

namespace detent::solve {
namespace {

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
  BitErrorReceiver(const onnx::Model& model, const quantization::BlockPlacement& placement,
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
  const quantization::BlockPlacement& placement_;
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
                                  const quantization::BlockPlacement& placement, std::span<const BitQuestion> questions,
                                  const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                                  data::SampleSource& source, WeightMethod method, const GramSweepOptions& options) {
  BitErrorReceiver asking(model, placement, questions, method, options);
  sweep_grams(model, types, stages, runtime, source, options, asking);
  return asking.take();
}

}  // namespace detent::solve
