// Receivers for the tap that reduce every tensor to its summary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/config.h"

namespace detent::calibration {

// What one run of the model gives of a value: the step between what was counted and a Summary, the same wherever it was
// counted.

/// A value to observe, and the node that makes it (for messages).
struct Observed {
  std::string value;
  std::string made_by;
};

struct ObserverOptions {
  bool histogram = false;
  /// Also count for each run which power-of-two scale is best; needs the histogram.
  bool votes = false;
  /// NaN and infinities are counted and left out instead of ending the run.
  bool allow_nonfinite = false;
  /// Pieces that a large tensor is reduced in at the same time, on the host.
  std::size_t threads = 1;
};

/// What observing took of a device; nothing on the host.
struct DeviceWork {
  std::uint64_t bytes = 0;  // of tensors that were read there
  std::uint64_t bytes_to_host = 0;

  DeviceWork& operator+=(const DeviceWork& other) noexcept {
    bytes += other.bytes;
    bytes_to_host += other.bytes_to_host;
    return *this;
  }
};

/// Observers of all values: what they have found, whichever memory the tensors are in. After an exception only good
/// for being destroyed.
class Observation : public data::TapReceiver {
 public:
  /// Names the sample for messages.
  virtual void begin_sample(const std::string& origin) = 0;
  /// The sample is through. Throws bad_input as receive() does, for what is known only now.
  virtual void end_sample() {}
  /// Summaries by value name; the other members are left to the caller.
  virtual Statistics statistics() = 0;
  /// So far.
  virtual DeviceWork device_work() const { return {}; }
};

/// The summary of one run but for its histogram. `extremes` are those of the finite values among the `count`.
Summary run_summary(std::uint64_t count, const KeyRange& extremes, std::uint64_t nan_count, std::uint64_t inf_count);

/// Throws bad_input naming tensor, node and sample when the run gave NaN or infinities that are not allowed.
void check_finite(const Summary& run, const Observed& observed, const std::string& sample,
                  const ObserverOptions& options);

/// Adds the run's votes, for which it needs its own histogram.
void count_best_scales(Summary& run);

/// Observers of tensors in the host's memory.
class Observers : public Observation {
 public:
  Observers(std::vector<Observed> values, const ObserverOptions& options);

  void begin_sample(const std::string& origin) override { sample_ = origin; }
  /// Throws bad_input naming tensor, node and sample for a NaN or infinity, unless they are allowed.
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;
  Statistics statistics() override;

 private:
  /// What one thread finds in its part of a tensor.
  struct Part {
    KeyRange extremes;
    std::uint64_t nan_count = 0;
    std::uint64_t inf_count = 0;
    HistogramScratch scratch;
  };
  void reduce(std::span<const float> values, Part& part) const;

  std::vector<Observed> values_;
  ObserverOptions options_;
  std::vector<Summary> summaries_;
  std::vector<Part> parts_;
  std::string sample_;
};

// How large keys and values become, channel by channel, and the scales that follow.

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
