// The sum of floats without rounding, so that it cannot depend on their order.
#pragma once

#include <array>
#include <cstdint>

namespace detent::calibration {

/// A fixed-point integer wide enough for every finite float, in limbs of 32 bits with room for carries: limb i weighs
/// 2^(32 i - 149). Good for 2^31 additions.
class ExactSum {
 public:
  static constexpr std::size_t kLimbs = 9;
  using Limbs = std::array<std::int64_t, kLimbs>;

  ExactSum() = default;
  explicit ExactSum(const Limbs& limbs) : limbs_(limbs) { carry(); }

  void add(float value);  // finite
  void merge(const ExactSum& other);
  /// Nearest double, but for a few units in the last place; the same for the same sum.
  double value() const;
  /// In the one form with all but the last limb in [0, 2^32): equal sums have equal limbs.
  Limbs limbs() const;

 private:
  void carry();

  Limbs limbs_{};
};

}  // namespace detent::calibration
