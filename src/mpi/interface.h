// What the MPI plugin offers: all that it and the binary know of each other. Plain C types, so that the two may come
// from different compilers.
#pragma once

namespace detent::mpi {

/// Raised when anything below changes. A plugin that does not speak the version asked for gives null.
inline constexpr int kInterfaceVersion = 1;

/// Calls that return int return 0, or an MPI error code that `error_text` explains. All from one thread.
struct Calls {
  /// Starts MPI: once in the life of a process.
  int (*start)(int* rank, int* size);
  /// Blocks until the peer takes part.
  int (*send)(const void* bytes, int count, int to);
  int (*receive)(void* bytes, int count, int from);
  /// Whether a message from `from` is waiting. Never blocks.
  int (*arrived)(int from, int* yes);
  /// Leaves MPI; waits until all ranks do.
  int (*finish)();
  /// Ends all ranks at once.
  void (*abort)(int exit_code);
  /// Writes at most `capacity` bytes, the closing zero among them.
  void (*error_text)(int code, char* text, int capacity);
};

/// The plugin's only symbol.
using Entry = const Calls*(int version);
inline constexpr const char* kEntryName = "detent_mpi";

}  // namespace detent::mpi
