// Samples of files as a model takes them: units of files, cut or joined to the batch of the model, and streams over
// other streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/load.h"
#include "data/sample.h"
#include "detent/samples.h"

namespace detent::data {

// Cuts files into samples of the model's batch, and joins files that hold less than one batch.

/// put() a file, take() until nothing is left, put() the next one; finish() after the last.
class Batcher {
 public:
  /// Throws usage when `batch_size` cannot be what the inputs fix.
  Batcher(std::vector<InputSpec> inputs, std::int64_t batch_size);

  void put(LoadedFile file);
  std::optional<Sample> take();
  /// What the file that was put last gives; a share of one where it is joined with others.
  double samples() const;
  void finish();
  void reset();
  std::vector<std::string> notes() const;

 private:
  enum class Mode { as_stored, split, join };

  /// A batch being put together from files that hold fewer rows.
  struct Partial {
    std::int64_t rows = 0;
    std::string first;
    std::string last;
    std::vector<Array> inputs;
    std::vector<Buffer> buffers;
  };
  /// Rows left over; the first file is named, the others are counted.
  struct Unused {
    std::string file;
    std::int64_t rows = 0;
    std::uint64_t more_files = 0;
    std::int64_t more_rows = 0;
  };

  void plan();
  std::int64_t common_rows() const;
  Sample take_whole();
  std::optional<Sample> take_piece();
  std::optional<Sample> take_joined();
  void start_partial();
  void append_rows(std::int64_t count);
  void count_unused_rows(const std::string& file, std::int64_t rows);

  std::vector<InputSpec> inputs_;
  std::int64_t batch_size_;            // 0: as stored
  std::optional<std::int64_t> fixed_;  // the axis 0 that all inputs with a static one share
  bool fixed_differs_ = false;         // inputs fix different lengths of axis 0
  std::optional<LoadedFile> file_;
  Mode mode_ = Mode::as_stored;
  std::int64_t batch_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t next_row_ = 0;
  std::optional<Partial> partial_;
  std::optional<Unused> unused_;
};

/// Of every `one_in` samples the last, or all but these. Of fewer samples than `one_in` the last is the last of all;
/// a single one is in both parts. The inner source must know its number, outlive this, and be read by nothing else in
/// between.
class SampleSubset final : public SampleSource {
 public:
  enum class Kind { last, others };
  SampleSubset(SampleSource& inner, std::size_t one_in, Kind kind);

  std::optional<Sample> next() override;
  void rewind() override;
  std::size_t sample_count() const override;
  std::vector<std::string> notes() const override { return inner_.notes(); }

 private:
  bool has(std::size_t sample) const;

  SampleSource& inner_;
  std::size_t all_;
  std::size_t one_in_;
  Kind kind_;
  std::size_t next_ = 0;  // of the inner source
};

/// Hands on what `inner` yields and puts it down as files in `directory`, whose owner removes them. After rewind()
/// these are yielded, and behind them what is left of `inner`. More bytes than `most` throw resource.
class ReplayStream final : public SampleStream {
 public:
  ReplayStream(SampleStream& inner, std::filesystem::path directory, std::optional<std::uint64_t> most = {});

  std::optional<std::vector<NamedArray>> next() override;
  void rewind() override { at_ = 0; }
  std::size_t size() const override { return inner_.size(); }

 private:
  struct Kept {
    std::vector<NamedArray> sample;  // without their bytes
    std::vector<std::uint64_t> sizes;
  };

  std::filesystem::path path_of(std::size_t sample) const;
  void put_down(const std::vector<NamedArray>& sample);
  std::vector<NamedArray> read(std::size_t sample) const;

  SampleStream& inner_;
  std::filesystem::path directory_;
  std::optional<std::uint64_t> most_;
  std::uint64_t bytes_ = 0;
  std::vector<Kept> kept_;
  std::size_t at_ = 0;  // of the next sample
  bool ended_ = false;  // the inner stream
};

}  // namespace detent::data
