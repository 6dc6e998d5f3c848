#include "solve/sweep/some_columns.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "quantization/blocks/block_stream.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {
namespace {

constexpr std::int64_t kMostPieces = 2;
constexpr std::int64_t kMostValues = std::int64_t{1} << 21;  // of a piece, unless a column has more

// First and last columns of the pieces that stand for all.
std::vector<std::pair<std::int64_t, std::int64_t>> pieces_of(std::int64_t columns, std::int64_t rows) {
  const auto piece = std::clamp(kMostValues / std::max<std::int64_t>(rows, 1), std::int64_t{1},
                                static_cast<std::int64_t>(kColumnsTogether));
  const std::int64_t all = (columns + piece - 1) / piece, count = std::min(all, kMostPieces);
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto first = (i * all / count) * piece;
    pieces.emplace_back(first, std::min(first + piece, columns));
  }
  return pieces;
}

}  // namespace

std::vector<float> representative_columns(const onnx::Tensor& tensor, const quantization::BlockTensor& shape) {
  std::vector<float> columns;
  for (const auto& [first, last] : pieces_of(shape.columns, shape.rows)) {
    const auto at = columns.size();
    columns.resize(at + static_cast<std::size_t>((last - first) * shape.rows));
    quantization::read_columns(tensor, shape, first, last, std::span(columns).subspan(at));
  }
  return columns;
}

}  // namespace detent::solve
