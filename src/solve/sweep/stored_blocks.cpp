#include "solve/sweep/stored_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"

namespace detent::solve {
namespace {

using quantization::BlockWeight;

constexpr std::size_t kMethodLength = 16;
constexpr double kNone = -1;

// Behind integers [columns, rows], scales and zero points [columns, blocks]. The fingerprint of all ends the file.
struct Footer {
  double output_error = 0;
  double dense_error = kNone;
  char method[kMethodLength] = {};
};

std::size_t block_count(const quantization::BlockTensor& shape) {
  return static_cast<std::size_t>(shape.columns * shape.format.blocks_of(shape.rows));
}

std::size_t file_size(const quantization::BlockTensor& shape) {
  return static_cast<std::size_t>(shape.rows * shape.columns) + block_count(shape) * (sizeof(float) + 1) +
         sizeof(Footer) + sizeof(Fingerprint);
}

// Piece by piece, so that no more than one of them is in memory for it.
Fingerprint checksum(const MappedFile& file, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  Hasher hasher;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(kPiece, bytes.size()));
    hasher.add(piece);
    file.release(piece);
    bytes = bytes.subspan(piece.size());
  }
  return hasher.result();
}

// A weight may have no elements.
template <typename T>
void copy_to(std::span<T> to, const std::byte* from) {
  if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
}

}  // namespace

void BlockWriter::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  file_.write(bytes);
}

void BlockWriter::add(const BlockWeight& stripe) {
  write(std::as_bytes(std::span(stripe.integers)));
  scales_.insert(scales_.end(), stripe.scales.begin(), stripe.scales.end());
  zero_points_.insert(zero_points_.end(), stripe.zero_points.begin(), stripe.zero_points.end());
}

void BlockWriter::finish(const BlockVerdict& verdict) {
  write(std::as_bytes(std::span(scales_)));
  write(std::as_bytes(std::span(zero_points_)));
  Footer footer{.output_error = verdict.output_error, .dense_error = verdict.dense_error.value_or(kNone)};
  std::copy_n(verdict.method.begin(), std::min(verdict.method.size(), kMethodLength - 1), footer.method);
  write(std::as_bytes(std::span(&footer, 1)));
  const auto sum = hasher_.result();
  file_.write(std::as_bytes(std::span(&sum, 1)));
  if (file_.size() != file_size(shape_)) throw internal_error("a solution does not fit its weight");
  file_.commit();
}

StoredBlocks::StoredBlocks(const std::filesystem::path& path, const quantization::BlockTensor& shape)
    : file_(MappedFile::open(path, "solution")), shape_(shape) {
  const auto bytes = file_->bytes();
  Fingerprint sum;
  const auto content =
      bytes.size() == file_size(shape) ? bytes.first(bytes.size() - sizeof(sum)) : std::span<const std::byte>();
  if (!content.empty()) std::memcpy(&sum, content.data() + content.size(), sizeof(sum));
  if (content.empty() || checksum(*file_, content) != sum)
    throw bad_input(fmt::format("the saved solution '{}' is damaged", path.string()), "run without --resume");
  Footer footer;
  std::memcpy(&footer, content.data() + content.size() - sizeof(footer), sizeof(footer));
  footer.method[kMethodLength - 1] = '\0';
  verdict_ = {footer.method, footer.output_error, {}};
  if (footer.dense_error >= 0) verdict_.dense_error = footer.dense_error;
}

BlockWeight StoredBlocks::columns(std::int64_t first, std::int64_t count) const {
  auto made = quantization::make_blocks(shape_.rows, count, shape_.format);
  const std::byte* scales = file_->bytes().data() + shape_.rows * shape_.columns;
  const std::byte* zero_points = scales + block_count(shape_) * sizeof(float);
  const auto block = static_cast<std::size_t>(first * made.blocks());
  copy_to(std::span(made.integers), file_->bytes().data() + first * shape_.rows);
  copy_to(std::span(made.scales), scales + block * sizeof(float));
  copy_to(std::span(made.zero_points), zero_points + block);
  file_->release(file_->bytes());
  return made;
}

quantization::BlockSolver StoredBlocks::solver() const {
  return [stored = *this](std::span<const float> columns, std::int64_t first) {
    const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(1, stored.shape_.rows));
    return stored.columns(first, static_cast<std::int64_t>(columns.size() / rows));
  };
}

}  // namespace detent::solve
