#include "solve/sweep/shared_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/failpoint.h"
#include "shim/shared_work.h"

namespace detent::solve {
namespace {

using quantization::BlockStream;
using quantization::BlockWeight;

// Ranks take neighbouring columns: all columns of all weights in a row, cut into equal parts.
class Cuts {
 public:
  Cuts(const std::vector<BlockStream>& streams, std::span<const std::byte> wanted, int ranks) : ranks_(ranks) {
    for (std::size_t t = 0; t < streams.size(); ++t) {
      const auto& shape = streams[t].shape();
      begins_.push_back(all_);
      rows_.push_back(shape.rows);
      columns_.push_back(wanted[t] != std::byte{0} ? shape.columns : 0);
      all_ += rows_.back() * columns_.back();
    }
  }

  /// The first column of a weight that this rank takes; with the next rank, that behind its last one.
  std::int64_t first(std::size_t tensor, int rank) const {
    const auto place = all_ / ranks_ * rank + all_ % ranks_ * rank / ranks_ - begins_[tensor];
    return std::clamp(place / std::max<std::int64_t>(rows_[tensor], 1), std::int64_t{0}, columns_[tensor]);
  }

 private:
  int ranks_;
  std::int64_t all_ = 0;
  std::vector<std::int64_t> begins_, rows_, columns_;
};

std::string name_of(std::size_t tensor, int rank) { return fmt::format("blocks-{}-{}.bin", tensor, rank); }

quantization::BlockTensor piece_of(quantization::BlockTensor shape, std::int64_t columns) {
  shape.columns = columns;
  return shape;
}

void append(BlockWeight& to, const BlockWeight& more) {
  to.columns += more.columns;
  to.integers.insert(to.integers.end(), more.integers.begin(), more.integers.end());
  to.scales.insert(to.scales.end(), more.scales.begin(), more.scales.end());
  to.zero_points.insert(to.zero_points.end(), more.zero_points.begin(), more.zero_points.end());
}

}  // namespace

quantization::BlockSolver BlocksInPieces::solver() const {
  return [all = *this](std::span<const float> columns, std::int64_t first) {
    const auto& shape = all.pieces.front().second.shape();
    const auto end = first + static_cast<std::int64_t>(columns.size()) / std::max<std::int64_t>(1, shape.rows);
    auto found = quantization::make_blocks(shape.rows, 0, shape.format);
    for (const auto& [begin, piece] : all.pieces) {
      const auto from = std::max(first, begin), to = std::min(end, begin + piece.shape().columns);
      if (from < to) append(found, piece.columns(from - begin, to - from));
    }
    return found;
  };
}

std::vector<BlocksInPieces> share_blocks(const std::vector<BlockStream>& streams, std::span<const std::byte> wanted,
                                         shim::Ranks& ranks, const std::filesystem::path& folder,
                                         const std::stop_token& stop) {
  const Cuts cuts(streams, wanted, ranks.size());
  std::vector<std::string> made;
  for (std::size_t t = 0; t < streams.size(); ++t) {
    const auto first = cuts.first(t, ranks.rank()), end = cuts.first(t, ranks.rank() + 1);
    if (first == end) continue;
    made.push_back(name_of(t, ranks.rank()));
    BlockWriter writer(folder / made.back(), piece_of(streams[t].shape(), end - first));
    streams[t].for_each(first, end, [&](std::int64_t, const BlockWeight& stripe) { writer.add(stripe); });
    writer.finish({});
    failpoint("blocks.shared");
  }
  (void)shim::gather_files(&ranks, folder, made, stop);
  std::vector<BlocksInPieces> all(streams.size());
  for (std::size_t t = 0; ranks.rank() == 0 && t < streams.size(); ++t) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto first = cuts.first(t, rank), end = cuts.first(t, rank + 1);
      if (first == end) continue;
      all[t].pieces.emplace_back(first,
                                 StoredBlocks(folder / name_of(t, rank), piece_of(streams[t].shape(), end - first)));
    }
  }
  return all;
}

}  // namespace detent::solve
