// Rows of facts about operators, found by the operator of a node.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "onnx/model.h"

namespace detent::graph {

/// Row has the members `domain` and `type`. Made when the program is compiled: it takes no memory when it is first
/// used.
template <class Row, std::size_t kCount>
class OperatorTable {
 public:
  constexpr explicit OperatorTable(const std::array<Row, kCount>& rows) : rows_(rows) {
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return key_of(a) < key_of(b); });
  }

  /// Null when the table has no such operator.
  const Row* find(const onnx::Node& node) const noexcept {
    const Key key{node.op_type(), node.domain()};
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), key,
                                        [](const Row& row, const Key& wanted) { return key_of(row) < wanted; });
    return found == rows_.end() || key_of(*found) != key ? nullptr : &*found;
  }

 private:
  using Key = std::pair<std::string_view, std::string_view>;
  static constexpr Key key_of(const Row& row) { return {row.type, row.domain}; }

  std::array<Row, kCount> rows_;
};

}  // namespace detent::graph
