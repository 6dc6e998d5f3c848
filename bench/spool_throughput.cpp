// How fast the spool moves records to disk and back, beside plain requests of the same size, number and kind without
// it, in one run and taking turns; and how well its work hides behind computation.
//   bench_spool DIRECTORY [GIB [RECORD_MIB [ROUNDS]]]
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef DETENT_HAS_URING
#include <liburing.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/parallel.h"
#include "detent/error.h"
#include "store/spool.h"

namespace {

namespace fs = std::filesystem;
using detent::TempDir;
using detent::UniqueFd;
using detent::store::DiskAccess;
using detent::store::Record;
using detent::store::Spool;
using detent::store::SpoolOptions;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kRequest = std::size_t{1} << 20;
constexpr std::size_t kDepth = 8;

double seconds_of(const std::function<void()>& act) {
  const Clock::time_point begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Processor time of the whole process.
double processor_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

void check(bool right, const char* what) {
  if (!right) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;
Memory aligned_memory(std::size_t size) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, size)), &std::free);
  for (std::size_t i = 0; i < size; ++i) memory.get()[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  return memory;
}

// --- plain requests --------------------------------------------------------------------------------------------------

void plain_threads(int fd, std::uint64_t size, bool write, std::size_t threads) {
  std::atomic<std::uint64_t> next = 0;
  detent::parallel_for(threads, threads, [&](std::size_t) {
    const Memory memory = aligned_memory(kRequest);
    for (std::uint64_t at = next.fetch_add(kRequest); at < size; at = next.fetch_add(kRequest)) {
      const auto offset = static_cast<off_t>(at);
      const ssize_t n =
          write ? ::pwrite(fd, memory.get(), kRequest, offset) : ::pread(fd, memory.get(), kRequest, offset);
      check(n == static_cast<ssize_t>(kRequest), "plain request");
    }
  });
}

void plain_uring([[maybe_unused]] int fd, [[maybe_unused]] std::uint64_t size, [[maybe_unused]] bool write) {
#ifdef DETENT_HAS_URING
  io_uring ring;
  check(::io_uring_queue_init(kDepth, &ring, 0) == 0, "io_uring");
  const Memory memory = aligned_memory(kRequest * kDepth);
  std::uint64_t started = 0;
  const auto start = [&](std::size_t slot) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring);
    std::byte* const data = memory.get() + slot * kRequest;
    if (write) {
      ::io_uring_prep_write(entry, fd, data, kRequest, started);
    } else {
      ::io_uring_prep_read(entry, fd, data, kRequest, started);
    }
    ::io_uring_sqe_set_data64(entry, slot);
    started += kRequest;
    ::io_uring_submit(&ring);
  };
  for (std::size_t slot = 0; slot < kDepth && started < size; ++slot) start(slot);
  for (std::uint64_t done = 0; done < size; done += kRequest) {
    io_uring_cqe* completion = nullptr;
    check(::io_uring_wait_cqe(&ring, &completion) == 0, "io_uring");
    check(completion->res == static_cast<int>(kRequest), "plain request");
    const auto slot = static_cast<std::size_t>(::io_uring_cqe_get_data64(completion));
    ::io_uring_cqe_seen(&ring, completion);
    if (started < size) start(slot);
  }
  ::io_uring_queue_exit(&ring);
#endif
}

struct Rates {
  double write = 0;  // GB/s
  double read = 0;
  double processor = 0;  // seconds for a GB written and read
};

Rates plain(const fs::path& directory, DiskAccess access, std::uint64_t size) {
  const TempDir own(directory);
  const fs::path path = own.path() / "plain";
  const int flags = access == DiskAccess::buffered ? 0 : O_DIRECT;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600));
  check(file.valid(), "open");
  const auto move = [&](bool write) {
    if (access == DiskAccess::uring) {
      plain_uring(file.get(), size, write);
    } else {
      plain_threads(file.get(), size, write, access == DiskAccess::direct ? 4 : 1);
    }
  };
  const double processor = processor_seconds();
  const double written = seconds_of([&] {
    if (flags != 0) ::posix_fallocate(file.get(), 0, static_cast<off_t>(size));
    move(true);
    check(::fdatasync(file.get()) == 0, "fdatasync");
  });
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  const double read = seconds_of([&] { move(false); });
  const double gb = static_cast<double>(size) / 1e9;
  return {gb / written, gb / read, (processor_seconds() - processor) / gb};
}

// --- the spool -------------------------------------------------------------------------------------------------------

SpoolOptions options_for(const fs::path& directory, DiskAccess access) {
  SpoolOptions options;
  options.directory = directory;
  options.residency = detent::store::Residency::disk;
  options.access = access;
  return options;
}

Record record_of(std::size_t size) {
  std::shared_ptr<std::byte> memory(aligned_memory(size).release(), &std::free);
  return {{detent::onnx::DataType::uint8, {static_cast<std::int64_t>(size)}, {memory.get(), size}, memory}};
}

void forget_pages(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const UniqueFd file(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

Rates spooled(const fs::path& directory, DiskAccess access, std::size_t record_size, std::size_t count) {
  const TempDir own(directory);
  Spool spool(options_for(own.path(), access));
  const auto lane = spool.open("bench");
  const Record record = record_of(record_size);
  const double processor = processor_seconds();
  const double written = seconds_of([&] {
    for (std::size_t i = 0; i < count; ++i) spool.put(lane, i, record);
    spool.sync();
  });
  forget_pages(own.path());
  const double read = seconds_of([&] {
    spool.prefetch({lane}, 0, count);
    for (std::size_t i = 0; i < count; ++i) check(spool.get(lane, i).has_value(), "get");
  });
  const double gb = static_cast<double>(record_size) * static_cast<double>(count) / 1e9;
  return {gb / written, gb / read, (processor_seconds() - processor) / gb};
}

// --- overlap ---------------------------------------------------------------------------------------------------------

// Works on a small part of the data again and again, as layers that reuse what they load do.
std::uint64_t compute(std::span<const std::byte> data, int rounds) {
  const auto part = data.first(std::min(data.size(), std::size_t{64} << 10));
  std::uint64_t sum = 0;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i + 8 <= part.size(); i += 8) {
      std::uint64_t word;
      std::memcpy(&word, part.data() + i, 8);
      sum = (sum ^ word) * 0x9E3779B97F4A7C15;
    }
  }
  return sum;
}

struct Overlap {
  double compute = 0;  // seconds
  double disk = 0;
  double both = 0;
};

// What a segment does: takes each record from one lane and puts another in the next.
Overlap overlap(const fs::path& directory, DiskAccess access, std::size_t record_size, std::size_t count, int rounds) {
  const Record input = record_of(record_size);
  std::uint64_t sum = 0;
  const auto sweep = [&](bool with_disk, int with_rounds) {
    const TempDir own(directory);
    Spool spool(options_for(own.path(), access));
    const auto from = spool.open("from");
    const auto to = spool.open("to");
    for (std::size_t i = 0; with_disk && i < count; ++i) spool.put(from, i, input);
    spool.sync();
    forget_pages(own.path());
    return seconds_of([&] {
      if (with_disk) spool.prefetch({from}, 0, count);
      for (std::size_t i = 0; i < count; ++i) {
        Record record = with_disk ? std::move(*spool.get(from, i)) : input;
        sum += compute(record[0].bytes, with_rounds);
        if (with_disk) spool.put(to, i, std::move(record));
      }
      if (with_disk) spool.sync();
    });
  };
  Overlap result{sweep(false, rounds), sweep(true, 0), sweep(true, rounds)};
  if (sum == 42) fmt::print(" ");  // so that nothing is left out
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const fs::path& directory, DiskAccess access, const char* name, std::size_t record_size, std::size_t count,
             std::size_t turns) {
  std::map<std::string, std::vector<double>> seen;
  const std::uint64_t size = record_size * count / kRequest * kRequest;
  for (std::size_t turn = 0; turn < turns; ++turn) {
    Rates without;
    if (turn % 2 == 0) without = plain(directory, access, size);
    const Rates with = spooled(directory, access, record_size, count);
    if (turn % 2 != 0) without = plain(directory, access, size);
    seen["plain write"].push_back(without.write);
    seen["plain processor"].push_back(without.processor);
    seen["spool processor"].push_back(with.processor);
    seen["plain read"].push_back(without.read);
    seen["spool write"].push_back(with.write);
    seen["spool read"].push_back(with.read);
    seen["write ratio"].push_back(with.write / without.write);
    seen["read ratio"].push_back(with.read / without.read);
  }
  const auto middle = [&](const char* what) { return median(seen[what]); };
  fmt::print("{:10} write {:.2f} GB/s, plain {:.2f}, ratio {:.2f}   read {:.2f} GB/s, plain {:.2f}, ratio {:.2f}   ",
             name, middle("spool write"), middle("plain write"), middle("write ratio"), middle("spool read"),
             middle("plain read"), middle("read ratio"));
  fmt::print("processor {:.2f} s/GB, plain {:.2f}\n", middle("spool processor"), middle("plain processor"));
}

int run(std::span<char*> arguments) {
  const fs::path directory = arguments.size() > 1 ? arguments[1] : ".";
  const double gib = arguments.size() > 2 ? std::atof(arguments[2]) : 2;
  const double mib = arguments.size() > 3 ? std::atof(arguments[3]) : 16;
  const std::size_t turns = arguments.size() > 4 ? static_cast<std::size_t>(std::atoi(arguments[4])) : 3;
  const auto record_size = static_cast<std::size_t>(mib * 1048576) / 4096 * 4096;
  const auto count = static_cast<std::size_t>(gib * 1073741824 / static_cast<double>(record_size));
  fmt::print("{} records of {} KiB in {}\n", count, record_size >> 10, directory.string());
  for (const auto& [access, name] :
       {std::pair{DiskAccess::buffered, "buffered"}, {DiskAccess::direct, "direct"}, {DiskAccess::uring, "io_uring"}}) {
    try {
      compare(directory, access, name, record_size, count, turns);
    } catch (const std::exception& error) {
      fmt::print("{:10} {}\n", name, error.what());
    }
  }
  {
    const TempDir own(directory);
    Spool spool(options_for(own.path(), DiskAccess::automatic));
    const auto lane = spool.open("bench");
    spool.put(lane, 0, record_of(4096));
    spool.sync();
    fmt::print("automatic: {}\n", spool.use().access_reason);
  }
  for (const int load : {1, 2, 4, 8}) {
    // About 4, 8, 16 and 32 ms for a record of 16 MiB.
    const int rounds = static_cast<int>(static_cast<double>(load) * mib * 8);
    std::vector<double> ratios;
    Overlap last;
    for (std::size_t turn = 0; turn < turns; ++turn) {
      last = overlap(directory, DiskAccess::automatic, record_size, count / 2, rounds);
      ratios.push_back(last.both / std::max(last.compute, last.disk));
    }
    fmt::print("overlap: compute {:.2f} s, disk {:.2f} s, both {:.2f} s: {:.2f} of the larger\n", last.compute,
               last.disk, last.both, median(ratios));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return run(std::span(argv, static_cast<std::size_t>(argc)));
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_spool: {}\n", error.what());
    return 1;
  }
}
