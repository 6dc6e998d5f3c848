// How far a consumer's values are from those of the reference, in steps.
#pragma once

#include <cstdint>
#include <string>

#include "data/sample.h"

namespace detent::checking {

struct Differences {
  std::uint64_t elements = 0, differ = 0, over_one = 0;
  double max_steps = 0;

  /// Of two arrays of integers of 8 or 16 bits, or of two of floats with a step of their own. A value that is finite on
  /// one side alone is infinitely far. Throws bad_input naming `name` when types or shapes differ.
  void add(const data::Array& reference, const data::Array& found, double step, const std::string& name);
  double share() const noexcept { return part_of(differ); }
  double share_over_one() const noexcept { return part_of(over_one); }

 private:
  double part_of(std::uint64_t count) const noexcept {
    return elements == 0 ? 0 : static_cast<double>(count) / static_cast<double>(elements);
  }
};

/// Whether Differences can tell of it.
bool is_comparable(onnx::DataType type) noexcept;
bool is_quantized(onnx::DataType type) noexcept;

/// The largest finite magnitude of an array of floats.
double magnitude_of(const data::Array& array);

}  // namespace detent::checking
