#include "run/comparison/pairing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/floats.h"

namespace detent::run {
namespace {

std::span<const float> as_floats(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

// The part of a tensor that a shape of the same rank has too.
std::vector<float> part_of(const std::vector<float>& values, const std::vector<std::int64_t>& shape,
                           const std::vector<std::int64_t>& part) {
  std::vector<float> found;
  std::vector<std::int64_t> at(shape.size(), 0);
  for (const float value : values) {
    bool inside = true;
    for (std::size_t d = 0; d < shape.size(); ++d) inside = inside && at[d] < part[d];
    if (inside) found.push_back(value);
    for (std::size_t d = shape.size(); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
  }
  return found;
}

}  // namespace

void PairSums::add(std::span<const float> x, std::span<const float> y) {
  const std::size_t count = std::min(x.size(), y.size());
  paired += count;
  unpaired += std::max(x.size(), y.size()) - count;
  for (std::size_t i = 0; i < count; ++i) {
    const double a = x[i];
    const double b = y[i];
    if (!std::isfinite(a) || !std::isfinite(b)) {
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      if (!same) noise = max_abs = std::numeric_limits<double>::infinity();
      if (std::isfinite(a)) signal += a * a;  // what is lost wholly has a signal as well
      continue;
    }
    signal += a * a;
    other += b * b;
    product += a * b;
    noise += (a - b) * (a - b);
    const double distance = std::abs(a - b);
    max_abs = distance > max_abs ? distance : max_abs;
  }
}

void PairSums::add(const data::Array& x, const data::Array& y) {
  if (x.shape != y.shape && x.shape.size() == y.shape.size()) {
    std::vector<std::int64_t> both = x.shape;
    for (std::size_t d = 0; d < both.size(); ++d) both[d] = std::min(both[d], y.shape[d]);
    const auto all_x = data::to_floats(x), all_y = data::to_floats(y);
    const auto of_x = part_of(all_x, x.shape, both), of_y = part_of(all_y, y.shape, both);
    add(std::span(of_x), std::span(of_y));
    unpaired += std::max(all_x.size(), all_y.size()) - of_x.size();
    return;
  }
  std::vector<float> own_x, own_y;
  add(data::floats_in(x, own_x), data::floats_in(y, own_y));
}

PairSums& PairSums::operator+=(const PairSums& more) {
  signal += more.signal;
  noise += more.noise;
  product += more.product;
  other += more.other;
  max_abs = std::max(max_abs, more.max_abs);
  paired += more.paired;
  unpaired += more.unpaired;
  return *this;
}

double PairSums::sqnr_db() const {
  if (noise == 0) return std::numeric_limits<double>::infinity();
  return 10.0 * std::log10(signal / noise);
}

double PairSums::cosine() const {
  if (signal == 0 && other == 0) return 1.0;
  const double length = std::sqrt(signal) * std::sqrt(other);
  return length == 0 ? 0.0 : product / length;
}

std::vector<bool> judged_outputs(const std::vector<onnx::DataType>& types, const std::vector<onnx::DataType>& others) {
  const bool by_floats = std::any_of(types.begin(), types.end(), data::holds_floats);
  const auto& counts = by_floats ? data::holds_floats : data::holds_numbers;
  std::vector<bool> judged;
  for (std::size_t i = 0; i < types.size(); ++i) judged.push_back(counts(types[i]) && counts(others[i]));
  return judged;
}

std::vector<onnx::DataType> types_of(const std::vector<data::Array>& arrays) {
  std::vector<onnx::DataType> types;
  for (const auto& array : arrays) types.push_back(array.type);
  return types;
}

void SampleSums::add(const data::Array& x, const data::Array& y) {
  PairSums one;
  one.add(x, y);
  all += one;
  if (one.has_ratio()) worst_db = std::min(worst_db.value_or(one.sqnr_db()), one.sqnr_db());
}

void Pairing::offer(std::size_t index, std::span<const std::byte> bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return taker_waits_ || taker_done_ || pending_.empty() || pending_bytes_ + bytes.size() <= limit_; });
  if (taker_failed_) throw internal_error("the other model's run failed");
  if (taker_done_) return;
  pending_[index].assign(bytes.begin(), bytes.end());
  pending_bytes_ += bytes.size();
  changed_.notify_all();
}

void Pairing::close(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

std::vector<std::byte> Pairing::take(std::size_t index) {
  std::unique_lock lock(mutex_);
  if (!pending_.contains(index)) {
    taker_waits_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return pending_.contains(index) || closed_; });
    taker_waits_ = false;
  }
  const auto found = pending_.find(index);
  if (found == pending_.end()) {
    if (error_) std::rethrow_exception(error_);
    throw internal_error("the float model never computed a value that both models have");
  }
  auto bytes = std::move(found->second);
  pending_bytes_ -= bytes.size();
  pending_.erase(found);
  changed_.notify_all();
  return bytes;
}

void Pairing::abandon(bool failed) {
  const std::lock_guard lock(mutex_);
  taker_done_ = true;
  taker_failed_ = failed;
  changed_.notify_all();
}

void Pairing::reset() {
  const std::lock_guard lock(mutex_);
  pending_.clear();
  pending_bytes_ = 0;
  taker_done_ = taker_failed_ = closed_ = false;
  error_ = nullptr;
}

void TakingReceiver::receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) {
  const auto bytes = pairing_.take(tap);
  sums_.at(tap).add(as_floats(bytes), as_floats(tensor.bytes));
  traits_.at(tap).add(as_floats(bytes), tensor.shape);
}

}  // namespace detent::run
