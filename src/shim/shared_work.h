// How ranks share work, and how what each of them made gets to rank 0.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "detent/error.h"
#include "shim/ranks.h"

namespace detent::shim {

/// What a rank that works alone passes for the others: null is one rank.
inline int rank_of(const Ranks* ranks) noexcept { return ranks == nullptr ? 0 : ranks->rank(); }
inline int size_of(const Ranks* ranks) noexcept { return ranks == nullptr ? 1 : ranks->size(); }

/// What a rank does by itself as long as this lives: it is told of no others.
class Apart {
 public:
  explicit Apart(Ranks* ranks) noexcept : reunion_(ranks) {
    if (ranks != nullptr) ranks->go_on_alone();
  }

 private:
  Reunion reunion_;
};

/// Ranks that work on one thing together, and what ends their waiting for each other. Null: this process is alone.
struct Team {
  Ranks* ranks = nullptr;
  std::stop_token stop = {};

  std::size_t rank() const noexcept { return static_cast<std::size_t>(rank_of(ranks)); }
  std::size_t size() const noexcept { return static_cast<std::size_t>(size_of(ranks)); }
};

/// For each item the rank that works on it: the costliest first, each to the rank that has the least to do. All ranks
/// find the same.
std::vector<int> owners_of(std::span<const double> costs, int ranks);

/// What a rank sent is no message of this program: another detent runs there, or it is at another place of it.
Error unexpected_message(int rank, const std::string& what);

/// Collective: rank 0's bytes on all ranks, which all have so many.
void broadcast(Ranks& ranks, std::span<std::byte> bytes, const std::stop_token& stop = {});

/// Collective: rank 0's value on all ranks, for decisions that rest on what only one of them measures.
template <typename T>
requires std::is_trivially_copyable_v<T> T broadcast_value(Ranks* ranks, T value, const std::stop_token& stop = {}) {
  if (ranks == nullptr) return value;
  broadcast(*ranks, std::as_writable_bytes(std::span(&value, 1)), stop);
  return value;
}

/// The same of names.
std::vector<std::string> broadcast_names(Ranks* ranks, std::vector<std::string> names,
                                         const std::stop_token& stop = {});

/// Collective: what each rank has, on all of them and in their order.
std::vector<std::vector<std::byte>> all_gather(Ranks* ranks, std::vector<std::byte> mine,
                                               const std::stop_token& stop = {});

/// What an item of a list makes: bytes in one place or several.
using Made = std::vector<std::span<std::byte>>;
/// Collective: what each item makes comes from its owner to all. The list is the same on all ranks.
void exchange_made(std::span<const Made> items, std::span<const int> owners, const Team& team);

/// Collective: whether it is so on any rank.
bool any_of(Ranks* ranks, bool mine, const std::stop_token& stop = {});

/// Of so many items, the first and the one behind the last of those that this rank takes where neighbours stay
/// together.
std::pair<std::size_t, std::size_t> share_of(const Ranks* ranks, std::size_t items) noexcept;

/// Collective: the files of these names that other ranks have in their folders come to be in that of rank 0, which
/// returns the names of all that came. Each is there as a whole or not at all.
std::vector<std::string> gather_files(Ranks* ranks, const std::filesystem::path& folder,
                                      const std::vector<std::string>& mine, const std::stop_token& stop = {});

}  // namespace detent::shim
