// Whether the result of a run can be put to use, in words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "detent/quantize.h"

namespace detent::run {

/// From this SQNR of the worst output on, a result counts as close: the error is a tenth of the signal.
constexpr double kCloseDb = 20;
/// Below this one it counts as far: a third of the signal.
constexpr double kFarDb = 10;
/// Fewer samples say little of all inputs.
constexpr std::size_t kFewSamples = 8;

/// The size of an error beside that of the signal (both as root mean squares), 0 to 1 and more: 20 dB are 0.1.
double error_of(double sqnr_db) noexcept;

Outcome outcome_of(const QuantizeResult& result);

/// A node that stays in float, or takes 16-bit activations, with what was measured of it.
struct KeptNode {
  std::string node;
  std::string why;
  const FallbackNode* measured = nullptr;  // lives as long as the result
};

/// The nodes of which a run decided that they stay in float, or get more bits.
std::vector<KeptNode> kept_nodes(const QuantizeResult& result);

}  // namespace detent::run
