// How large keys and values become, channel by channel, and the scales that follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tap.h"
#include "detent/config.h"

namespace detent::calibration {

/// Keys or values of a layer, [batch, heads, positions, channels].
struct CacheValue {
  std::string value;
  std::int64_t heads = 0, channels = 0;
  /// The first so many channels of a head are rotated by their position, two by two: neighbours, or one of each half.
  std::int64_t rotated = 0;
  bool neighbours = false;
};

/// Counts magnitudes. Of two channels that are rotated the length of the pair counts for both: at other positions than
/// the samples' each may be as large as that. The counts do not depend on the order of samples.
class CacheObserver final : public data::TapReceiver {
 public:
  CacheObserver(std::vector<CacheValue> values, bool per_channel);

  /// Names the sample for messages.
  void begin_sample(std::string origin) { sample_ = std::move(origin); }
  /// `tap` counts the values. Throws bad_input for NaN and infinite values.
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;

  /// Of a value: one, or one for each channel of each head. Of integers those with the least sum of squared errors,
  /// what is clipped included; of floats those that bring the largest magnitude to the largest number. 1 for what was
  /// never other than 0.
  std::vector<float> scales(std::size_t value, KvCacheType type) const;

 private:
  /// Magnitudes of about the same size; the first and the last hold all that are smaller and larger.
  static constexpr std::size_t kPerOctave = 8, kBins = 32 * kPerOctave;
  struct Counts {
    std::array<std::uint32_t, kBins> bins = {};
    float largest = 0;
    std::uint64_t zeros = 0;
  };
  static std::size_t bin_of(float magnitude);
  static double middle_of(std::size_t bin);
  static float best_scale(const Counts& counts, double most);
  bool count_head(const CacheValue& value, std::span<const float> positions, std::span<Counts> counts) const;

  std::vector<CacheValue> values_;
  bool per_channel_;
  std::vector<std::vector<Counts>> counts_;  // for each value, of its channels or, with one, of its heads
  std::string sample_;
};

}  // namespace detent::calibration
