// Blocks of weights that need no samples, found by several processes: each takes a share of all columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "quantization/blocks/block_stream.h"
#include "shim/ranks.h"
#include "solve/sweep/stored_blocks.h"

namespace detent::solve {

/// The blocks of a weight in pieces of its columns, each in a file.
struct BlocksInPieces {
  std::vector<std::pair<std::int64_t, StoredBlocks>> pieces;  // with their first columns, ascending; empty: not shared

  /// Gives back what was found, whatever the columns hold.
  quantization::BlockSolver solver() const;
};

/// Collective: what each stream finds, in the order of `streams`, on rank 0; nothing elsewhere. Those whose byte
/// in `wanted` is 0 are left out. Files are in `folder` on each rank, and may go once this has returned.
std::vector<BlocksInPieces> share_blocks(const std::vector<quantization::BlockStream>& streams,
                                         std::span<const std::byte> wanted, shim::Ranks& ranks,
                                         const std::filesystem::path& folder, const std::stop_token& stop);

}  // namespace detent::solve
