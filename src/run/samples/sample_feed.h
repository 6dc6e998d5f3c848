// Samples on their way into a sweep: in an order that does not depend on where they are, shared out to workers, looked
// at for what is suspicious.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::run {

// Samples in the order of the source, for the first segment of a sweep and for those after it.

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

// Distributes samples among workers, and keeps the first error.

/// Workers take items from `next`, which is called by one of them at a time and returns nullopt at the end. After
/// `until` (but not before the first item) and after a failure no more are handed out, so the items taken are a prefix
/// of all.
template <class Item>
class SampleQueue {
 public:
  using Clock = std::chrono::steady_clock;

  SampleQueue(std::function<std::optional<Item>()> next, std::optional<Clock::time_point> until)
      : next_(std::move(next)), until_(until) {}

  std::optional<Item> take() {
    const std::lock_guard lock(mutex_);
    if (failure_ || exhausted_ || (taken_ > 0 && until_ && Clock::now() >= *until_)) return std::nullopt;
    try {
      auto item = next_();
      exhausted_ = !item;
      if (item) ++taken_;
      return item;
    } catch (...) {
      keep(taken_, std::current_exception());
      return std::nullopt;
    }
  }

  /// Of several errors, that with the smallest `order` is kept.
  void failed(std::size_t order, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    keep(order, std::move(error));
  }

  /// After all workers have ended: rethrows the first error; whether all items were handed out.
  bool finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return exhausted_;
  }

 private:
  void keep(std::size_t order, std::exception_ptr error) {
    if (failure_ && order >= failed_) return;
    failed_ = order;
    failure_ = std::move(error);
  }

  std::function<std::optional<Item>()> next_;
  std::optional<Clock::time_point> until_;
  std::mutex mutex_;
  std::size_t taken_ = 0;
  bool exhausted_ = false;
  std::size_t failed_ = 0;
  std::exception_ptr failure_;
};

/// Whether each row of a sample (along axis 0 of all inputs) gives, run alone, its row of the results, so that rows are
/// samples of their own. No for samples of one row, and for models that fix the number of rows.
bool rows_are_samples(const exec::Runtime& runtime, const onnx::Model& model, const data::Sample& sample, int threads);

struct ContentOrderOptions {
  std::size_t most = 0;  // so many samples of the inner source are used; 0: all
  bool rows = false;     // rows are samples, see rows_are_samples()
  /// Samples are read ahead up to so many bytes, since the inner source has to be read from its start for what comes
  /// earlier there.
  std::uint64_t ahead = std::uint64_t{16} << 20;
};

/// The samples of another source in the order of their fingerprints: the same whatever order, files and batches they
/// come in.
class ContentOrderedSamples final : public data::SampleSource {
 public:
  /// `inner` must outlive this, and nothing else may read it in between. It is read for the first time when it is
  /// needed.
  ContentOrderedSamples(data::SampleSource& inner, ContentOrderOptions options) : inner_(inner), options_(options) {}

  std::optional<data::Sample> next() override;
  void rewind() override { next_ = 0; }
  void skip(std::size_t count) override { next_ += std::min(count, order().size() - next_); }
  /// Whether what was read ahead stays for another pass, as at first. Without it, samples go as they are handed over.
  void keep(bool keeps);
  /// Samples, or rows.
  std::size_t sample_count() const override { return order().size(); }
  std::vector<std::string> notes() const override { return inner_.notes(); }

 private:
  struct Place {
    Fingerprint content;
    std::uint32_t sample = 0, row = 0;  // in the inner source; small, since rows come in great numbers
  };
  struct Ahead {
    std::size_t position = 0;
    data::Sample sample;
  };

  const std::deque<Place>& order() const;
  std::vector<data::Sample> units_of(data::Sample sample) const;
  void read_ahead();

  data::SampleSource& inner_;
  ContentOrderOptions options_;
  mutable std::deque<Place> order_;           // empty: not read yet
  mutable std::vector<std::uint64_t> bytes_;  // of a row of each sample of the inner source
  std::deque<Ahead> ahead_;                   // of positions that follow each other
  bool keeps_ = true;
  std::size_t next_ = 0;
};

/// A note for each: samples that repeat others, inputs that hold one value only, and inputs of another scale than the
/// weights and biases of the convolutions that read them were made for. Throws bad_input where no value was seen.
std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics);

/// What single samples show, and sums over all of them do not.
class OddInputs {
 public:
  explicit OddInputs(const onnx::Model& model);

  void add(const data::Sample& sample);
  /// A note for each: samples that are one number each, not all the same, and places in a table that are counted from
  /// its end.
  std::vector<std::string> notes() const;
  /// Throws bad_input where one of the inputs of sample `origin` looks up what is not in a table.
  void refuse_beyond_tables(std::span<const data::Array> inputs, const std::string& origin) const;

 private:
  struct Input {
    std::string name;
    std::string table;         // that its integers are places in; empty: none
    std::int64_t entries = 0;  // of the table
    std::int64_t least = 0;
    std::uint64_t negative = 0, even = 0;  // samples with such places, and of one number each
    std::optional<float> number = {};      // of the first of those
    bool differs = false;                  // from that of another
  };

  std::vector<Input> inputs_;
  std::uint64_t samples_ = 0;
};

}  // namespace detent::run
