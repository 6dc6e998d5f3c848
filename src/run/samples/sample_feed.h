// Samples in the order of the source, for the first segment of a sweep and for those after it.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "data/sample.h"

namespace detent::run {

/// A sample to be run: with its inputs in the first segment, by its number in later ones.
struct FedSample {
  std::size_t number = 0;
  std::string origin;
  std::optional<data::Sample> sample;
};

/// next() and inputs_of() may be called from several threads, one next() at a time.
class SampleFeed {
 public:
  explicit SampleFeed(data::SampleSource& source) : source_(source) {}

  /// Reads the first `count` samples (all without a count), from where the source stands; their fingerprint.
  Fingerprint read(std::optional<std::size_t> count);

  /// The next samples are those of the first segment, from the source's start, without the first `skipped`.
  void start_first(std::size_t skipped);
  /// The next samples are those of a later segment, from `first` to `end`.
  void start_later(std::size_t first, std::size_t end);
  std::optional<FedSample> next();
  /// Number of the sample that next() gives.
  std::size_t position() const noexcept { return next_; }

  /// Inputs of a sample out of turn.
  std::vector<data::Array> inputs_of(std::size_t number);

 private:
  data::SampleSource& source_;
  std::mutex source_mutex_;
  std::size_t next_ = 0;
  std::optional<std::size_t> end_;    // of a later segment
  std::vector<std::string> origins_;  // of the samples read so far, for messages
};

}  // namespace detent::run
