// The processes that an MPI launcher started together. MPI itself is in a plugin, loaded only when there are several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

namespace detent::shim {

/// This process among those that were started together: rank 0 of 1 when it was started plainly, and MPI is then never
/// loaded. Calls come from one thread. A collective is called by all ranks, in the same order; a rank that waits for
/// another leaves its core to others. Move-only.
class Ranks {
 public:
  using Take = std::function<void(int rank, std::span<const std::byte> bytes)>;
  using Next = std::function<std::span<const std::byte>()>;

  /// Joins the others when a launcher's variables in the environment say that there are any. The plugin is `plugin` if
  /// given, else $DETENT_MPI_PLUGIN, else libdetent_mpi.so beside the executable (or in ../lib); the word "none"
  /// instead of a path makes each process work alone. Throws device when the plugin or its MPI is missing, or when that
  /// MPI sees another number of processes than the launcher: N processes that know nothing of each other would each do
  /// the whole job and overwrite the output. Once in the life of a process.
  static Ranks join(const std::optional<std::filesystem::path>& plugin = {});

  Ranks(Ranks&&) noexcept;
  Ranks& operator=(Ranks&&) noexcept;
  /// Leaves MPI in order, once all ranks do. Not so when an exception is on its way or broke a collective off: the
  /// others may never get here. Launchers end them when this process exits with an error; abort() makes sure of it.
  ~Ranks();

  /// This rank goes on alone, as rank 0 does when the others have left it the rest. From now on it is the only one that
  /// is told of, until a Reunion ends.
  void go_on_alone() noexcept;

  int rank() const noexcept;
  int size() const noexcept;
  /// Bytes that came from other ranks so far, without those by which they agree about them.
  std::uint64_t received_bytes() const noexcept;

  /// Collective. On rank 0 `take` is called once for each other rank, in rank order, with the `mine` of that rank; only
  /// one rank's bytes are in memory at a time. Any number of bytes. Throws device when MPI fails, interrupted when a
  /// stop is requested while waiting.
  void gather(std::span<const std::byte> mine, const Take& take, const std::stop_token& stop = {});
  /// As gather(), of what need not be in memory as a whole: `next` gives piece after piece, and an empty one at the
  /// end. `take` gets all pieces of a rank before those of the next one, without the empty ones. Rank 0 has none.
  void gather_pieces(const Next& next, const Take& take, const std::stop_token& stop = {});
  /// Collective: what rank 0 has in `bytes` is there on all ranks. Throws as gather does.
  void broadcast(std::vector<std::byte>& bytes, const std::stop_token& stop = {});
  /// Collective: `take` is called once for each other rank, in any order, with the `mine` of that rank. Ranks hand it
  /// to each other in pairs, so that what goes through one of them does not grow with their number squared. Throws as
  /// gather does.
  void exchange(std::span<const std::byte> mine, const Take& take, const std::stop_token& stop = {});
  /// Collective: returns once all ranks have called it. Throws as gather does.
  void barrier(const std::stop_token& stop = {});
  /// Ends all ranks at once with this exit code, so that none waits for one that failed. Nothing is unwound: call it
  /// when the error has been reported and working files are gone. Ends the process when alone, too.
  [[noreturn]] void abort(int exit_code);

 private:
  friend class Reunion;
  struct World;
  bool has_others() const noexcept;
  Ranks() noexcept;

  std::unique_ptr<World> world_;  // null: alone
};

/// A part of the work: where it ends, the rank is among the others as it was before, even if it went on alone.
class Reunion {
 public:
  explicit Reunion(Ranks* ranks) noexcept;
  Reunion(const Reunion&) = delete;
  Reunion& operator=(const Reunion&) = delete;
  ~Reunion();

 private:
  Ranks::World* world_;  // null: there are no others
  bool was_alone_;
};

}  // namespace detent::shim
