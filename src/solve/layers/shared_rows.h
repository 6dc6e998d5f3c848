// Rows of a layer that several ranks find: each takes some items of a fixed list, and all get what it made of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "shim/shared_work.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/problem.h"

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

/// That an integer takes where it travels.
inline std::size_t bytes_of_integer(std::int32_t lowest, std::int32_t highest) {
  return highest - lowest <= std::numeric_limits<std::uint8_t>::max() ? 1 : 2;
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

template <class Fn>
void for_each_of(std::span<const RowRange> items, std::size_t width, const Fn& fn) {
  for (std::size_t item = 0; item < items.size(); ++item) {
    for (std::size_t i = items[item].first * width; i < items[item].last * width; ++i) fn(item, i);
  }
}

/// The same of integers between lowest and highest: so few bytes as that takes.
template <class Packed>
void gather_packed(std::vector<std::int32_t>& integers, std::int32_t lowest, std::span<const RowRange> items,
                   std::size_t width, const shim::Team& team) {
  std::vector<Packed> packed(integers.size());
  for_each_of(items, width, [&](std::size_t item, std::size_t i) {
    if (takes(item, team)) packed[i] = static_cast<Packed>(integers[i] - lowest);
  });
  gather_rows(packed, items, width, team);
  for_each_of(items, width, [&](std::size_t item, std::size_t i) {
    if (!takes(item, team)) integers[i] = lowest + static_cast<std::int32_t>(packed[i]);
  });
}

inline void gather_integers(std::vector<std::int32_t>& integers, const QuantizedWeights& weights,
                            std::span<const RowRange> items, const shim::Team& team) {
  if (team.size() == 1) return;
  if (bytes_of_integer(weights.lowest, weights.highest) == 1) {
    gather_packed<std::uint8_t>(integers, weights.lowest, items, weights.fan_in, team);
  } else {
    gather_packed<std::uint16_t>(integers, weights.lowest, items, weights.fan_in, team);
  }
}

}  // namespace detent::solve
