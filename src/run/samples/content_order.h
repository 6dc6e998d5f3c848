// Samples in an order that follows from what they hold, and not from where they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/fingerprint.h"
#include "data/sample.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::run {

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
    std::uint64_t bytes = 0;
    std::size_t sample = 0, row = 0;  // in the inner source
  };
  struct Ahead {
    std::size_t position = 0;
    data::Sample sample;
  };

  const std::vector<Place>& order() const;
  std::vector<data::Sample> units_of(data::Sample sample) const;
  void read_ahead();

  data::SampleSource& inner_;
  ContentOrderOptions options_;
  mutable std::vector<Place> order_;  // empty: not read yet
  std::deque<Ahead> ahead_;           // of positions that follow each other
  bool keeps_ = true;
  std::size_t next_ = 0;
};

}  // namespace detent::run
