// A session in a process of its own: whatever the runtime makes of a model there (a crash, a hang), it ends in an error
// here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/error.h"
#include "exec/session.h"

namespace detent::exec {

/// The process of a session died, or took too long: the runtime said nothing of the model.
struct SessionDied : Error {
  SessionDied(const std::string& what, std::string hint) : Error(ErrorKind::bad_input, what, std::move(hint)) {}
};

struct GuardOptions {
  int threads = 0;            // of the runtime; 0: one per core
  double load_seconds = 300;  // until a small model is loaded; a large one has more, by its size
  double run_seconds = 600;   // of one run
  std::stop_token stop = {};
  bool saves_memory = false;  // of what runs beside it: under a memory budget
  bool optimizes = true;      // as the runtime does by default
  /// Bytes that runs may take on disk which wait for those of another model.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
};

/// A model as the runtime reads it from its file, with the runtime's default options (SessionMode::deployed). The
/// process is the program `detent` (shim::find_program()); where that is not installed, as in a program that was linked
/// with detent's library alone, the session is one of this process.
class GuardedSession {
 public:
  /// Throws bad_input when the runtime refuses the model, ends by a signal, or takes too long; interrupted; resource
  /// when no process can be started, or it is killed or finds no memory.
  GuardedSession(const Runtime& runtime, const std::filesystem::path& model, const GuardOptions& options);
  GuardedSession(GuardedSession&&) noexcept;
  /// Ends the process.
  ~GuardedSession();

  const std::vector<Port>& inputs() const;
  /// As Session::run(). After an error the session is of no more use.
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// To be called before a model is loaded into this process: throws bad_input when the runtime dies of it, or takes too
/// long. A model that the runtime refuses passes, since loading it tells more.
void check_survives(const Runtime& runtime, const std::filesystem::path& model, const GuardOptions& options = {});

/// Asks such a process, which serves as long as the result lives: for infer_value_types(). The function throws
/// SessionDied as well.
PortsOf guarded_ports(const Runtime& runtime, const GuardOptions& options = {});

/// The socket that this process was started with to serve a GuardedSession; nullopt: it was started for something else.
/// To be called once, before anything is done.
std::optional<int> guarded_socket();

/// Serves until the other side is gone. Returns the exit code of the process.
int serve_guarded_session(int socket);

}  // namespace detent::exec
