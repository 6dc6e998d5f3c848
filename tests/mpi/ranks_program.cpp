// What test_ranks.py starts by mpirun: one use of Ranks, chosen by the first argument.
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "shim/ranks.h"

namespace {

using detent::shim::Ranks;
namespace fs = std::filesystem;
using Arguments = std::span<char* const>;
using namespace std::chrono_literals;

std::byte pattern(int rank, std::size_t i) { return static_cast<std::byte>((i * 31 + i / 4099 + 7U * rank) & 0xffU); }

// Rank r sends as many bytes as the r-th argument says; rank 0 checks each of them.
void gather(Ranks& ranks, Arguments sizes) {
  const std::size_t size = std::strtoull(sizes[ranks.rank()], nullptr, 10);
  const auto mine = std::make_unique_for_overwrite<std::byte[]>(size);
  for (std::size_t i = 0; i < size; ++i) mine[i] = pattern(ranks.rank(), i);
  ranks.gather({mine.get(), size}, [](int rank, std::span<const std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != pattern(rank, i)) throw detent::internal_error(fmt::format("rank {}: byte {} is wrong", rank, i));
    fmt::print("rank {}: {} bytes\n", rank, bytes.size());
  });
}

// Rank r sends as many pieces as the r-th argument says, each a byte longer than the one before.
void gather_pieces(Ranks& ranks, Arguments counts) {
  const auto count = std::strtoull(counts[ranks.rank()], nullptr, 10);
  std::vector<std::byte> piece;
  const auto next = [&]() -> std::span<const std::byte> {
    if (piece.size() == count) return {};
    piece.push_back(pattern(ranks.rank(), piece.size()));
    return piece;
  };
  ranks.gather_pieces(next, [](int rank, std::span<const std::byte> bytes) {
    if (bytes.back() != pattern(rank, bytes.size() - 1)) throw detent::internal_error("a piece is wrong");
    fmt::print("rank {}: {} bytes\n", rank, bytes.size());
  });
}

void broadcast(Ranks& ranks, Arguments sizes) {
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    std::vector<std::byte> bytes(ranks.rank() == 0 ? std::strtoull(sizes[s], nullptr, 10) : s);
    for (std::size_t i = 0; ranks.rank() == 0 && i < bytes.size(); ++i) bytes[i] = pattern(0, i);
    ranks.broadcast(bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != pattern(0, i)) throw detent::internal_error(fmt::format("byte {} is wrong", i));
    fmt::print("rank {}: {} bytes\n", ranks.rank(), bytes.size());
  }
}

// Each rank leaves a file before the barrier, some late, and behind it sees all files.
void barrier(Ranks& ranks, const fs::path& folder) {
  for (int round = 0; round < 3; ++round) {
    const std::string prefix = fmt::format("{}-", round);
    if (ranks.rank() == round % ranks.size()) std::this_thread::sleep_for(200ms);
    std::ofstream(folder / fmt::format("{}{}", prefix, ranks.rank())).put('x');
    ranks.barrier();
    int seen = 0;
    for (const auto& entry : fs::directory_iterator(folder))
      seen += entry.path().filename().string().starts_with(prefix);
    if (seen != ranks.size()) throw detent::internal_error(fmt::format("{} of {} files", seen, ranks.size()));
  }
  fmt::print("rank {} of {} done\n", ranks.rank(), ranks.size());
}

double cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// All wait for the last rank; which share of a core that takes.
void idle(Ranks& ranks) {
  const auto begin = std::chrono::steady_clock::now();
  const double before = cpu_seconds();
  if (ranks.rank() == ranks.size() - 1) std::this_thread::sleep_for(2s);
  ranks.barrier();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  fmt::print("{:.3f}\n", (cpu_seconds() - before) / waited.count());
}

// The rank named fails, in the way named, while the others wait for it.
void fail(Ranks& ranks, std::string_view how, int failing) {
  if (ranks.rank() != failing) {
    ranks.gather({}, [](int, std::span<const std::byte>) {});
    ranks.barrier();
    return;
  }
  std::this_thread::sleep_for(200ms);
  fmt::print("last words\n");
  if (how == "abort") ranks.abort(42);
  if (how == "exit") std::_Exit(43);
  if (how == "kill") std::abort();
  if (how == "take") ranks.gather({}, [](int, std::span<const std::byte>) { throw detent::bad_input("not taken"); });
  throw detent::bad_input("something is wrong");
}

void run(Arguments arguments) {
  const std::string_view what = arguments[0];
  Ranks ranks = Ranks::join();
  if (what == "gather") gather(ranks, arguments.subspan(1));
  if (what == "pieces") gather_pieces(ranks, arguments.subspan(1));
  if (what == "broadcast") broadcast(ranks, arguments.subspan(1));
  if (what == "barrier") barrier(ranks, arguments[1]);
  if (what == "idle") idle(ranks);
  if (what == "fail") fail(ranks, arguments[1], std::atoi(arguments[2]));
  if (what == "maps")
    fmt::print("{}", std::string(std::istreambuf_iterator<char>(std::ifstream("/proc/self/maps").rdbuf()), {}));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(Arguments(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const detent::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return exit_code(e.kind());
  }
}
