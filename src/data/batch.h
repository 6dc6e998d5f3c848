// Cuts files into samples of the model's batch, and joins files that hold less than one batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/buffer.h"
#include "data/load.h"

namespace detent::data {

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

}  // namespace detent::data
