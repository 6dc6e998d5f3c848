// Solutions of weights in blocks, in a file each, as they are found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/fingerprint.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/blocks.h"

namespace detent::solve {

/// How a weight was solved.
struct BlockVerdict {
  std::string method;                      // that most columns keep
  double output_error = 0;                 // of the product on samples: sum of squared errors over the sum of squares
  std::optional<double> dense_error = {};  // with sparsity, the same without it
};

/// A solution on disk. Cheap to copy.
class StoredBlocks {
 public:
  /// What is in the file for a weight of this shape. Throws bad_input where it is not as it was written.
  StoredBlocks(const std::filesystem::path& path, const quantization::BlockTensor& shape);

  const BlockVerdict& verdict() const noexcept { return verdict_; }
  const quantization::BlockTensor& shape() const noexcept { return shape_; }
  quantization::BlockWeight columns(std::int64_t first, std::int64_t count) const;
  /// Gives back what was found, whatever the columns hold.
  quantization::BlockSolver solver() const;

 private:
  std::shared_ptr<const MappedFile> file_;
  quantization::BlockTensor shape_;
  BlockVerdict verdict_;
};

/// Writes one, stripe by stripe in the order of columns. The file is there after finish(), or not at all.
class BlockWriter {
 public:
  BlockWriter(const std::filesystem::path& path, const quantization::BlockTensor& shape) : file_(path), shape_(shape) {}
  void add(const quantization::BlockWeight& stripe);
  void finish(const BlockVerdict& verdict);

 private:
  void write(std::span<const std::byte> bytes);

  AtomicFile file_;
  Hasher hasher_;
  quantization::BlockTensor shape_;
  std::vector<float> scales_;
  std::vector<std::uint8_t> zero_points_;
};

}  // namespace detent::solve
