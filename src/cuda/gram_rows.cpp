#include "cuda/gram_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "cuda/launch.h"
#include "cuda/row_kernels.h"

namespace detent::cuda {
namespace {

using solve::Quadratic;
using solve::QuantizedWeights;
using solve::RowRange;

Product product_of(std::size_t rows, std::size_t group_rows, std::size_t fan_in) {
  const std::size_t groups = std::max<std::size_t>(rows / group_rows, 1);
  const auto k = static_cast<std::int64_t>(fan_in);
  Product p;
  p.m = static_cast<std::int64_t>(rows / groups);
  p.n = p.k = p.lda = p.ldb = p.ldc = k;
  p.batch = static_cast<std::int64_t>(groups);
  p.stride_a = p.stride_c = p.m * k;
  p.stride_b = k * k;
  return p;
}

}  // namespace

GramRows::GramRows(Device& device, const QuantizedWeights& weights, const Quadratic& quadratic, RowRange rows,
                   DevicePrecision precision)
    : device_(device.current()),
      rows_(rows),
      fan_in_(weights.fan_in),
      group_rows_(quadratic.group_rows()),
      blocks_(scale_blocks_of(weights)),
      exact_(device, product_of(rows.count(), group_rows_, fan_in_), DevicePrecision::float32) {
  check_size(count(), fan_in_);
  const Stream& stream = device.stream();
  const std::size_t first_group = quadratic.group_of(rows.first), last_group = quadratic.group_of(rows.last - 1) + 1;
  const std::size_t size = fan_in_ * fan_in_;
  gram_ = array<float>((last_group - first_group) * size);
  std::vector<float> matrix(size);
  for (std::size_t g = first_group; g < last_group; ++g) {
    for (std::size_t i = 0; i < fan_in_; ++i) quadratic.row(g, i, matrix.data() + i * fan_in_);
    device.clock().queued(stream, DeviceLane::copy, "sums of a layer", {sizeof(float) * size, 0},
                          [&] { upload<float>(stream, gram_, matrix, (g - first_group) * size); });
    stream.wait();  // before the next one takes its place
  }
  if (solve::multiplies_in_bfloat16(precision, fan_in_)) {
    narrow_gram_ = array<Bfloat16>(gram_.size());
    launch(stream, ToBfloat16{gram_.data(), narrow_gram_.data(), gram_.size()}, blocks_for(gram_.size()));
    fast_.emplace(device, product_of(count(), group_rows_, fan_in_), DevicePrecision::bfloat16);
  } else if (precision == DevicePrecision::tf32) {
    fast_.emplace(device, product_of(count(), group_rows_, fan_in_), DevicePrecision::tf32);
  }
  scale_ = uploaded<float>(weights.scale, weights.blocks());
  zero_ = uploaded<std::int32_t>(weights.zero, weights.blocks());
  std::vector<float> linear(values());
  quadratic.linear(rows, linear.data());
  linear_ = array<float>(values());
  upload<float>(stream, linear_, linear);
  dequantized_ = array<float>(values());
  stream.wait();  // what was copied from goes away
}

void GramRows::step_product(const float* values, const Bfloat16* narrow_values, float* out) const {
  if (narrow()) {
    fast_->run(narrow_values, narrow_gram_.data(), out);
  } else {
    (fast_ ? *fast_ : exact_).run(values, gram_.data(), out);
  }
}

void GramRows::repeat(const Graph& graph, std::size_t times, const char* what, std::size_t step_arrays,
                      const solve::SolveControl& control) const {
  constexpr std::size_t kAhead = 64;  // before the host looks whether it is to stop
  const std::uint64_t product =
      narrow() ? sizeof(Bfloat16) * (narrow_gram_.size() + values()) : sizeof(float) * (gram_.size() + values());
  const std::uint64_t step = sizeof(float) * (step_arrays + 1) * values();  // the product's result, too
  const double flops = 2 * static_cast<double>(values()) * static_cast<double>(fan_in_);
  const Stream& stream = device_.stream();
  while (times > 0) {
    const std::size_t count = std::min(times, kAhead);
    device_.clock().queued(stream, DeviceLane::compute, what,
                           {count * (product + step), static_cast<double>(count) * flops}, [&] {
                             for (std::size_t i = 0; i < count; ++i) graph.launch(stream);
                           });
    stream.wait();
    times -= count;
    if (times > 0) solve::check_stop(control);
  }
  device_.clock().report_finished_work();
}

void GramRows::residual(const std::int32_t* integers, const float* factor, float* to) const {
  const Stream& stream = device_.stream();
  launch(stream,
         DequantizeKernel{integers, scale_.data(), zero_.data(), dequantized_.data(), blocks_, count(), fan_in_},
         blocks_for(values()));
  product(dequantized_.data(), to);
  launch(stream, ResidualKernel{to, linear_.data(), factor, to, count(), fan_in_}, blocks_for(values()));
}

double GramRows::error_sum(const std::int32_t* integers) const {
  const Stream& stream = device_.stream();
  const auto factor = array<float>(count()), rest = array<float>(values());
  const auto dots = array<double>(count());
  std::vector<float> numbers(count(), 1.0F);
  upload<float>(stream, factor, numbers);
  residual(integers, factor.data(), rest.data());  // w A − c; then the sum of w ((w A − c) − c)
  stream.wait();
  std::fill(numbers.begin(), numbers.end(), -1.0F);
  upload<float>(stream, factor, numbers);
  launch(stream,
         RowDotKernel{dequantized_.data(), rest.data(), linear_.data(), factor.data(), factor.data(), dots.data(),
                      fan_in_},
         static_cast<unsigned>(count()), kSumBytes);
  std::vector<double> sums(count());
  download<double>(stream, sums, dots);
  stream.wait();
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

ScaleBlocks scale_blocks_of(const solve::QuantizedWeights& weights) {
  return {static_cast<std::uint32_t>(weights.blocks()), static_cast<std::uint32_t>(weights.block_size())};
}

void check_size(std::size_t rows, std::size_t fan_in) {
  if (static_cast<double>(rows) * static_cast<double>(fan_in) < 0x1p32) return;
  throw resource_error(fmt::format("a layer of {} x {} weights is beyond what the GPU's kernels count", rows, fan_in),
                       "give more devices, which share its rows, or --device cpu");
}

void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn) { parallel_for(count, count, fn); }

}  // namespace detent::cuda
