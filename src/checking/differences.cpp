#include "checking/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "data/floats.h"

namespace detent::checking {
namespace {

using onnx::DataType;

template <class T>
void add_integers(const data::Array& a, const data::Array& b, Differences& to) {
  const auto *x = reinterpret_cast<const T*>(a.bytes.data()), *y = reinterpret_cast<const T*>(b.bytes.data());
  const std::size_t count = a.bytes.size() / sizeof(T);
  int most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int steps = std::abs(static_cast<int>(x[i]) - static_cast<int>(y[i]));
    to.differ += steps > 0 ? 1 : 0;
    to.over_one += steps > 1 ? 1 : 0;
    most = std::max(most, steps);
  }
  to.elements += count;
  to.max_steps = std::max(to.max_steps, static_cast<double>(most));
}

void add_floats(const data::Array& a, const data::Array& b, double step, Differences& to) {
  const auto x = data::to_floats(a), y = data::to_floats(b);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    double steps = same ? 0 : std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])) / step;
    if (std::isnan(steps)) steps = std::numeric_limits<double>::infinity();
    to.differ += steps >= 1 ? 1 : 0;
    to.over_one += steps > 1 ? 1 : 0;
    to.max_steps = std::max(to.max_steps, steps);
  }
  to.elements += x.size();
}

}  // namespace

bool is_quantized(DataType type) noexcept {
  return type == DataType::uint8 || type == DataType::int8 || type == DataType::uint16 || type == DataType::int16;
}

bool is_comparable(DataType type) noexcept { return is_quantized(type) || data::holds_floats(type); }

void Differences::add(const data::Array& reference, const data::Array& found, double step, const std::string& name) {
  if (reference.type != found.type || reference.shape != found.shape)
    throw bad_input(fmt::format("'{}' has another type or shape where the model is deployed", name));
  switch (reference.type) {
    case DataType::uint8: return add_integers<std::uint8_t>(reference, found, *this);
    case DataType::int8: return add_integers<std::int8_t>(reference, found, *this);
    case DataType::uint16: return add_integers<std::uint16_t>(reference, found, *this);
    case DataType::int16: return add_integers<std::int16_t>(reference, found, *this);
    default: return add_floats(reference, found, step, *this);
  }
}

double magnitude_of(const data::Array& array) {
  double most = 0;
  for (const float x : data::to_floats(array)) {
    if (std::isfinite(x)) most = std::max(most, static_cast<double>(std::abs(x)));
  }
  return most;
}

}  // namespace detent::checking
