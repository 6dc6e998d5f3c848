#include "run/pairing.h"

#include <fmt/format.h>

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

}  // namespace

void PairSums::add(std::span<const float> x, std::span<const float> y, const std::string& name) {
  if (x.size() != y.size()) {
    throw bad_input(
        fmt::format("'{}' has {} elements in the float model and {} in the quantized one", name, x.size(), y.size()),
        "compare a model with its own quantized form");
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = x[i];
    const double b = y[i];
    if (!std::isfinite(a) || !std::isfinite(b)) {
      const bool same = a == b || (std::isnan(a) && std::isnan(b));
      if (!same) noise = max_abs = std::numeric_limits<double>::infinity();
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

void PairSums::add(const data::Array& x, const data::Array& y, const std::string& name) {
  if (x.type == onnx::DataType::float32 && y.type == x.type) return add(data::floats(x), data::floats(y), name);
  add(data::to_floats(x), data::to_floats(y), name);
}

PairSums& PairSums::operator+=(const PairSums& more) {
  signal += more.signal;
  noise += more.noise;
  product += more.product;
  other += more.other;
  max_abs = std::max(max_abs, more.max_abs);
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
  sums_.at(tap).add(as_floats(bytes), as_floats(tensor.bytes), names_[tap]);
  traits_.at(tap).add(as_floats(bytes), tensor.shape);
}

}  // namespace detent::run
