// Rows of a layer that several ranks find: each takes some items of a fixed list, and all get what it made of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "shim/shared_work.h"
#include "solve/algebra/quadratic.h"

namespace detent::solve {

/// The rank that takes an item.
inline std::size_t owner_of(std::size_t item, const shim::Team& team) { return item % team.size(); }
inline bool takes(std::size_t item, const shim::Team& team) { return owner_of(item, team) == team.rank(); }

/// parallel_for() over the items that this rank takes.
template <class Fn>
void share_for(std::size_t count, std::size_t threads, const shim::Team& team, const Fn& fn) {
  const std::size_t mine = (count + team.size() - 1 - team.rank()) / team.size();
  parallel_for(mine, threads, [&](std::size_t i) { fn(team.rank() + i * team.size()); });
}

/// Collective: the values of the rows of each item come from the rank that takes it. `width` of a row.
template <class T>
void gather_rows(std::vector<T>& values, std::span<const RowRange> items, std::size_t width, const shim::Team& team) {
  if (team.size() == 1) return;
  std::vector<shim::Made> made;
  std::vector<int> owners;
  for (const auto& rows : items) {
    owners.push_back(static_cast<int>(owner_of(owners.size(), team)));
    made.push_back({std::as_writable_bytes(std::span(values).subspan(rows.first * width, rows.count() * width))});
  }
  shim::exchange_made(made, owners, team);
}

}  // namespace detent::solve
