#include "shim/ranks.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "mpi/interface.h"
#include "shim/library.h"

namespace detent::shim {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kAlone = "none";
constexpr std::size_t kPiece = std::size_t{16} << 20;  // MPI counts in int; more in one message is no faster
constexpr std::byte kGo{1};

/// What a launcher says in the environment about the processes that it started.
struct Launch {
  std::string variable;
  int size;  // 0: it does not say, only MPI can tell
};

int parse_size(const std::string& variable, std::string_view text) {
  int size = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (code == std::errc() && end == text.data() + text.size() && size > 0) return size;
  throw device_error(fmt::format("{}='{}' is not a number of processes", variable, text),
                     "it is set by an MPI launcher; unset it to run detent plainly");
}

std::optional<Launch> find_launch() {
  // The launcher next to this process decides: mpirun in a Slurm job starts its daemons by srun and passes on what srun
  // told them. SLURM_NTASKS would not do, it is also set in a batch script, which is one process.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return Launch{variable, parse_size(variable, value)};
  }
  if (std::getenv("PMIX_RANK") != nullptr) return Launch{"PMIX_RANK", 0};
  return std::nullopt;
}

Error cannot_join(const Launch& launch, const std::string& reason) {
  const std::string others = launch.size > 0 ? fmt::format("{}", launch.size) : "several";
  return device_error(
      fmt::format("this is one of {} processes ({}) but cannot join the others: {}", others, launch.variable, reason),
      fmt::format("build detent with the MPI of this launcher and set DETENT_MPI_PLUGIN to its libdetent_mpi.so, or to "
                  "'{}' to let each process work alone",
                  kAlone));
}

/// The plugin that was asked for, by argument or environment; empty when none was.
std::string chosen_plugin(const std::optional<fs::path>& explicit_path) {
  if (explicit_path) return explicit_path->string();
  const char* variable = std::getenv("DETENT_MPI_PLUGIN");
  return variable == nullptr ? "" : variable;
}

/// Of the usual places the first where the plugin exists: why that one cannot be loaded is then the reason to report.
std::string installed_plugin(const Launch& launch) {
  constexpr const char* kName = "libdetent_mpi.so";
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path beside = here / kName;
  const fs::path library = here.parent_path() / "lib" / kName;
  for (const fs::path& candidate : {beside, library})
    if (fs::exists(candidate, ignored)) return candidate.string();
  throw cannot_join(launch, fmt::format("there is no MPI plugin '{}' or '{}'", beside.string(), library.string()));
}

const mpi::Calls* load_plugin(const std::string& path, const Launch& launch) {
  const auto library = Library::open({path});
  if (!library) {
    const char* reason = ::dlerror();
    throw cannot_join(launch, fmt::format("cannot load the MPI plugin '{}': {}", path, reason ? reason : "not found"));
  }
  const mpi::Calls* calls = reinterpret_cast<mpi::Entry*>(library->symbol(mpi::kEntryName))(mpi::kInterfaceVersion);
  if (calls == nullptr) throw cannot_join(launch, fmt::format("the MPI plugin '{}' is of another version", path));
  return calls;
}

std::string error_text(const mpi::Calls& calls, int code) {
  std::array<char, 512> text{};
  calls.error_text(code, text.data(), static_cast<int>(text.size()));
  return text[0] == '\0' ? fmt::format("error {}", code) : text.data();
}

}  // namespace

struct Ranks::World {
  explicit World(const mpi::Calls& given) : calls(given) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { leave(); }

  void leave() const noexcept {
    if (in_collective || std::uncaught_exceptions() > exceptions_before) return;
    try {
      barrier({});  // MPI would wait, too, but spin
      calls.finish();
    } catch (...) {  // MPI failed: the end of the process has to do
    }
  }

  void check(int code, const char* doing, int peer) const {
    if (code != 0)
      throw device_error(fmt::format("MPI failed to {} rank {}: {}", doing, peer, error_text(calls, code)));
  }

  void send(const void* bytes, std::size_t count, int to) const {
    const auto* next = static_cast<const std::byte*>(bytes);
    for (std::size_t done = 0; done < count; done += kPiece)
      check(calls.send(next + done, static_cast<int>(std::min(kPiece, count - done)), to), "send to", to);
  }

  void receive(void* bytes, std::size_t count, int from) const {
    auto* next = static_cast<std::byte*>(bytes);
    for (std::size_t done = 0; done < count; done += kPiece)
      check(calls.receive(next + done, static_cast<int>(std::min(kPiece, count - done)), from), "receive from", from);
  }

  // MPI's own waiting spins, on a core that the rank waited for may need.
  void wait_for(int peer, const std::stop_token& stop) const {
    using namespace std::chrono_literals;
    for (auto pause = 20us;; pause = std::min<std::chrono::microseconds>(2 * pause, 2ms)) {
      int arrived = 0;
      check(calls.arrived(peer, &arrived), "wait for", peer);
      if (arrived != 0) return;
      if (stop.stop_requested()) throw interrupted();
      std::this_thread::sleep_for(pause);
    }
  }

  void wait_for_go(int peer, const std::stop_token& stop) const {
    std::byte go{};
    wait_for(peer, stop);
    receive(&go, sizeof go, peer);
  }

  // Ranks announce the size of what they have, then wait for their turn: a wait that costs nothing, and only then a
  // transfer for which both sides are there.
  void give(std::span<const std::byte> mine, int to, const std::stop_token& stop) const {
    const std::uint64_t count = mine.size();
    send(&count, sizeof count, to);
    wait_for_go(to, stop);
    send(mine.data(), mine.size(), to);
  }

  std::uint64_t announced_by(int peer, const std::stop_token& stop) const {
    std::uint64_t count = 0;
    wait_for(peer, stop);
    receive(&count, sizeof count, peer);
    return count;
  }

  /// Whether there were any bytes.
  bool take_from(int peer, const Take& take, const std::stop_token& stop) {
    const auto count = announced_by(peer, stop);
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(count);
    send(&kGo, sizeof kGo, peer);
    receive(bytes.get(), count, peer);
    received += count;
    take(peer, {bytes.get(), count});
    return count > 0;
  }

  void give_pieces(const Next& next, const std::stop_token& stop) const {
    for (bool more = true; more;) {
      const auto piece = next();
      give(piece, 0, stop);
      more = !piece.empty();
    }
  }

  void take_pieces(const Take& take, const std::stop_token& stop) {
    const Take filled = [&](int peer, std::span<const std::byte> piece) {
      if (!piece.empty()) take(peer, piece);
    };
    for (int peer = 1; peer < size; ++peer) {
      while (take_from(peer, filled, stop)) {
      }
    }
  }

  void broadcast(std::vector<std::byte>& bytes, const std::stop_token& stop) {
    for (int peer = 1; rank == 0 && peer < size; ++peer) give(bytes, peer, stop);
    if (rank == 0) return;
    bytes.resize(announced_by(0, stop));
    send(&kGo, sizeof kGo, 0);
    receive(bytes.data(), bytes.size(), 0);
    received += bytes.size();
  }

  // In each round the ranks stand in pairs, which all know; one is by itself. The lower one gives first.
  void exchange(std::span<const std::byte> mine, const Take& take, const std::stop_token& stop) {
    for (int round = 0; round < size; ++round) {
      const int peer = (round - rank + size) % size;
      if (peer == rank) continue;
      if (rank < peer) give(mine, peer, stop);
      take_from(peer, take, stop);
      if (rank > peer) give(mine, peer, stop);
    }
  }

  void barrier(const std::stop_token& stop) const {
    if (rank != 0) {
      send(&kGo, sizeof kGo, 0);
      wait_for_go(0, stop);
      return;
    }
    for (int peer = 1; peer < size; ++peer) {
      std::byte here{};
      wait_for(peer, stop);
      receive(&here, sizeof here, peer);
    }
    for (int peer = 1; peer < size; ++peer) send(&kGo, sizeof kGo, peer);
  }

  const mpi::Calls& calls;
  int rank = 0;
  int size = 1;
  std::uint64_t received = 0;  // bytes
  bool alone = false;          // nobody else takes part any more
  bool in_collective = false;  // stays set when an exception broke one off
  int exceptions_before = std::uncaught_exceptions();
};

Ranks::Ranks() noexcept = default;
Ranks::Ranks(Ranks&&) noexcept = default;
Ranks& Ranks::operator=(Ranks&&) noexcept = default;
Ranks::~Ranks() = default;

bool Ranks::has_others() const noexcept { return world_ && !world_->alone; }
int Ranks::rank() const noexcept { return has_others() ? world_->rank : 0; }
int Ranks::size() const noexcept { return has_others() ? world_->size : 1; }
std::uint64_t Ranks::received_bytes() const noexcept { return world_ ? world_->received : 0; }

void Ranks::go_on_alone() noexcept {
  if (world_) world_->alone = true;
}

Reunion::Reunion(Ranks* ranks) noexcept
    : world_(ranks == nullptr ? nullptr : ranks->world_.get()), was_alone_(world_ != nullptr && world_->alone) {}

Reunion::~Reunion() {
  if (world_ != nullptr) world_->alone = was_alone_;
}

Ranks Ranks::join(const std::optional<fs::path>& plugin) {
  const auto launch = find_launch();
  Ranks ranks;
  if (!launch || launch->size == 1) return ranks;
  std::string path = chosen_plugin(plugin);
  if (path == kAlone) return ranks;
  if (path.empty()) path = installed_plugin(*launch);

  auto world = std::make_unique<World>(*load_plugin(path, *launch));
  if (const int code = world->calls.start(&world->rank, &world->size); code != 0)
    throw cannot_join(*launch, error_text(world->calls, code));
  // An MPI that does not know this launcher starts every process as the first and only one.
  if (launch->size != 0 && world->size != launch->size)
    throw cannot_join(*launch, fmt::format("the MPI of '{}' sees {} of them", path, world->size));
  ranks.world_ = std::move(world);
  return ranks;
}

void Ranks::gather(std::span<const std::byte> mine, const Take& take, const std::stop_token& stop) {
  if (!has_others()) return;
  world_->in_collective = true;
  if (rank() == 0) {
    for (int peer = 1; peer < size(); ++peer) world_->take_from(peer, take, stop);
  } else {
    world_->give(mine, 0, stop);
  }
  world_->in_collective = false;
}

void Ranks::gather_pieces(const Next& next, const Take& take, const std::stop_token& stop) {
  if (!has_others()) return;
  world_->in_collective = true;
  if (rank() == 0) {
    world_->take_pieces(take, stop);
  } else {
    world_->give_pieces(next, stop);
  }
  world_->in_collective = false;
}

void Ranks::broadcast(std::vector<std::byte>& bytes, const std::stop_token& stop) {
  if (!has_others()) return;
  world_->in_collective = true;
  world_->broadcast(bytes, stop);
  world_->in_collective = false;
}

void Ranks::exchange(std::span<const std::byte> mine, const Take& take, const std::stop_token& stop) {
  if (!has_others()) return;
  world_->in_collective = true;
  world_->exchange(mine, take, stop);
  world_->in_collective = false;
}

void Ranks::barrier(const std::stop_token& stop) {
  if (!has_others()) return;
  world_->in_collective = true;
  world_->barrier(stop);
  world_->in_collective = false;
}

void Ranks::abort(int exit_code) {
  std::fflush(nullptr);  // what was printed has to arrive
  if (world_) world_->calls.abort(exit_code);
  std::_Exit(exit_code);
}

}  // namespace detent::shim
