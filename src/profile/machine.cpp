#include "profile/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/file.h"
#include "base/numbers.h"
#include "shim/library.h"

namespace detent::profile {

/// Pages of memory, zero and not touched yet; empty when there are none to be had.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return;
    address_ = static_cast<std::byte*>(address);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
  }
  std::span<std::byte> bytes() const { return {address_, address_ == nullptr ? 0 : bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* address_ = nullptr;
};

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kComputeTime = 40ms;
constexpr auto kMemoryTime = 60ms;
// Of all threads together. Small beside what a run takes, so that looking at the machine is not the run's peak.
constexpr std::uint64_t kBuffer = 16ULL << 20;

constexpr int kChains = 12;  // a fused multiply-add takes 4 cycles and two can begin in each, so 8 are the least
constexpr int kSteps = 20'000;

// Each returns the operations of all lanes; the sum of the results goes to `sink` so that none can be left out.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) double multiply_add_512(float& sink) {
  __m512 sums[kChains];  // as std::array the type would lose its alignment
  const __m512 factor = _mm512_set1_ps(0.999F + sink);
  const __m512 term = _mm512_set1_ps(0.001F);
  std::fill_n(sums, kChains, term);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], factor, term);
  }
  for (const __m512& sum : sums) sink += _mm512_cvtss_f32(sum) * 1e-30F;
  return 2.0 * 16 * kChains * kSteps;
}

__attribute__((target("avx2,fma"))) double multiply_add_256(float& sink) {
  __m256 sums[kChains];  // as std::array the type would lose its alignment
  const __m256 factor = _mm256_set1_ps(0.999F + sink);
  const __m256 term = _mm256_set1_ps(0.001F);
  std::fill_n(sums, kChains, term);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = _mm256_fmadd_ps(sums[c], factor, term);
  }
  for (const __m256& sum : sums) sink += _mm256_cvtss_f32(sum) * 1e-30F;
  return 2.0 * 8 * kChains * kSteps;
}
#elif defined(__aarch64__)
// With -O1 GCC leaves the sums in memory.
__attribute__((optimize("O2"))) double multiply_add_neon(float& sink) {
  constexpr int kMoreChains = 16;  // up to four can begin in each cycle, and there are 32 registers
  float32x4_t sums[kMoreChains];
  const float32x4_t factor = vdupq_n_f32(0.999F + sink);
  const float32x4_t term = vdupq_n_f32(0.001F);
  std::fill_n(sums, kMoreChains, term);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kMoreChains; ++c) sums[c] = vfmaq_f32(sums[c], factor, term);
  }
  for (const float32x4_t& sum : sums) sink += vgetq_lane_f32(sum, 0) * 1e-30F;
  return 2.0 * 4 * kMoreChains * kSteps;
}
#endif

#if !defined(__aarch64__)
/// Four lanes, which every other 64-bit machine has.
double multiply_add_128(float& sink) {
  using Lanes = float __attribute__((vector_size(16)));
  const float f = 0.999F + sink;
  const Lanes factor{f, f, f, f};
  const Lanes term{0.001F, 0.001F, 0.001F, 0.001F};
  std::array<Lanes, kChains> sums;
  sums.fill(term);
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) sums[c] = sums[c] * factor + term;
  }
  for (const Lanes& sum : sums) sink += sum[0] * 1e-30F;
  return 2.0 * 4 * kChains * kSteps;
}
#endif

double multiply_add(float& sink) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0) return multiply_add_512(sink);
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) return multiply_add_256(sink);
#endif
#if defined(__aarch64__)
  return multiply_add_neon(sink);
#else
  return multiply_add_128(sink);
#endif
}

double thread_seconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

/// Where threads wait for one another, again and again. Not std::barrier: without futexes, as on Windows, that of GCC
/// 12 loses wake-ups.
class Meeting {
 public:
  explicit Meeting(int threads) : members_(threads), awaited_(threads) {}
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (--awaited_ == 0) release();
    complete_.wait(lock, [&] { return round_ != round; });
  }
  /// So many do not come any more.
  void drop(int threads) {
    const std::lock_guard lock(mutex_);
    members_ -= threads;
    awaited_ -= threads;
    if (awaited_ == 0) release();
  }

 private:
  void release() {
    awaited_ = members_;
    ++round_;
    complete_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable complete_;
  int members_, awaited_;
  int round_ = 0;
};

/// The sum over the threads of what `round(thread)` gets done in a second of processor time, while all of them are at
/// it for `duration`. A first round on each warms up and is not counted, nor is what `prepare(thread)` takes before
/// each other round, which all begin together then.
double rate_of_all(int threads, Clock::duration duration, const std::function<double(int)>& round,
                   const std::function<void(int)>& prepare = {}) {
  std::vector<double> rates(threads);
  Meeting ready(threads);
  const auto work = [&](int thread) {
    round(thread);
    ready.arrive_and_wait();
    const Clock::time_point end = Clock::now() + duration;
    double amount = 0, seconds = 0;
    do {
      if (prepare) {
        prepare(thread);
        ready.arrive_and_wait();
      }
      const double before = thread_seconds();
      amount += round(thread);
      seconds += thread_seconds() - before;
    } while (Clock::now() < end);
    ready.drop(1);
    if (seconds > 0) rates[thread] = amount / seconds;
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) {
      try {
        others.emplace_back(work, t);
      } catch (const std::system_error&) {  // the system gives no more threads: go on with fewer
        ready.drop(threads - t);
        break;
      }
    }
    work(0);
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

/// Puts `bytes` out of all caches, so that a buffer that is smaller than these is read from memory.
void flush(std::span<const std::byte> bytes) {
  constexpr std::size_t kCacheLine = 64;
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes.size(); i += kCacheLine) _mm_clflush(bytes.data() + i);
  _mm_mfence();
#elif defined(__aarch64__)
  for (std::size_t i = 0; i < bytes.size(); i += kCacheLine)
    asm volatile("dc civac, %0" : : "r"(bytes.data() + i) : "memory");
  asm volatile("dsb ish" : : : "memory");
#else
  (void)bytes, (void)kCacheLine;  // what is read lies in a cache where that is larger than the buffer
#endif
}

constexpr std::size_t kStreams = 8;
constexpr std::size_t kLine = 8;  // words

/// Reads several stretches side by side: one alone leaves the memory idle at every end of a page.
DETENT_VECTOR_CLONES std::uint64_t sum_of(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[kStreams][kLine] = {};
  const std::size_t stretch = count / kStreams;
  for (std::size_t i = 0; i < stretch; i += kLine) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      for (std::size_t k = 0; k < kLine; ++k) sums[s][k] += words[s * stretch + i + k];
    }
  }
  std::uint64_t sum = 0;
  for (const auto& stream : sums) sum = std::accumulate(std::begin(stream), std::end(stream), sum);
  return sum;
}

/// Each thread reads its part of the buffer over and over. Before each round the part is put out of the caches: what is
/// measured is main memory read in order, however large the caches are, and not what they hold.
double memory_rate(int threads, std::uint64_t room) {
  if (room < kBuffer) return 0;
  constexpr std::size_t kSlice = kStreams * kLine * sizeof(std::uint64_t);
  const std::size_t words = std::max<std::size_t>(kBuffer / threads / kSlice, 1) * kStreams * kLine;
  const Pages pages(words * threads * sizeof(std::uint64_t));
  if (pages.bytes().empty()) return 0;
  auto* const all = reinterpret_cast<std::uint64_t*>(pages.bytes().data());
  std::vector<std::uint64_t> sums(threads);
  const auto read = [&](int thread) {
    std::uint64_t* const mine = all + thread * words;
    if (mine[0] == 0) std::fill_n(mine, words, 1);  // by the thread that reads it, so that it lies in its memory
    sums[thread] += sum_of(mine, words);
    return static_cast<double>(words * sizeof(std::uint64_t));
  };
  return rate_of_all(threads, kMemoryTime, read,
                     [&](int thread) { flush(std::as_bytes(std::span(all + thread * words, words))); });
}

/// Processors that this process may run on.
int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

/// What cannot be measured, for want of memory for instance, is zero.
template <typename Measure>
double or_zero(const Measure& measure) noexcept {
  try {
    const double value = measure();
    return std::isfinite(value) ? value : 0;
  } catch (...) {
    return 0;
  }
}

}  // namespace

MachinePeaks measure_machine(int threads, const fs::path& directory, std::uint64_t room) noexcept {
  MachinePeaks peaks;
  peaks.threads = std::clamp(threads, 1, processors());
  peaks.flops_per_second = or_zero([&] {
    std::vector<float> sinks(static_cast<std::size_t>(peaks.threads) * 16);  // a cache line for each
    return rate_of_all(peaks.threads, kComputeTime, [&](int thread) { return multiply_add(sinks[thread * 16]); });
  });
  peaks.memory_bytes_per_second = or_zero([&] { return memory_rate(peaks.threads, room); });
  peaks.disk_bytes_per_second = or_zero([&] { return disk_rate(directory); });
  return peaks;
}

namespace {

constexpr auto kDiskTime = 80ms;  // for writing, and again for reading
constexpr std::size_t kFileSize = 64ULL << 20;
constexpr std::size_t kRequest = 4ULL << 20;

/// A file of `directory` that has no name, or has lost it at once.
UniqueFd nameless_file(const fs::path& directory, int more_flags) {
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | more_flags, 0600));
  if (file.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (directory / "detent-disk-XXXXXX").string();
  file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC | more_flags));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

struct Transfer {
  std::size_t bytes = 0;
  double seconds = 0;
};

/// Moves up to `size` bytes by `request(buffer, count, offset)` for kDiskTime.
template <typename Request>
Transfer transfer(std::span<std::byte> buffer, std::size_t size, const Request& request) {
  Transfer done;
  const Clock::time_point begin = Clock::now();
  while (done.bytes < size && Clock::now() < begin + kDiskTime) {
    const ssize_t n = request(buffer.data(), std::min(buffer.size(), size - done.bytes), done.bytes);
    if (n <= 0) break;
    done.bytes += static_cast<std::size_t>(n);
  }
  done.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return done;
}

/// Data that no file system can compress.
void fill(std::span<std::byte> bytes) {
  auto* const words = reinterpret_cast<std::uint64_t*>(bytes.data());
  std::uint64_t random = 0x9E3779B97F4A7C15;
  for (std::size_t i = 0; i < bytes.size() / sizeof(random); ++i) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    words[i] = random;
  }
}

Transfer write_file(const UniqueFd& file, std::span<std::byte> data, bool flush) {
  const Clock::time_point begin = Clock::now();
  Transfer written = transfer(data, kFileSize, [&](std::byte* from, std::size_t n, std::size_t at) {
    return ::pwrite(file.get(), from, n, static_cast<off_t>(at));
  });
  if (flush && written.bytes > 0) ::fdatasync(file.get());
  written.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return written;
}

}  // namespace

double disk_rate(const fs::path& directory) {
  const Pages pages(kRequest);
  const std::span<std::byte> data = pages.bytes();
  if (data.empty()) return 0;
  fill(data);
  UniqueFd file = nameless_file(directory, O_DIRECT);
  Transfer written = write_file(file, data, false);
  if (written.bytes == 0) {  // no direct access here: through the page cache, and out of it again
    file = nameless_file(directory, 0);
    written = write_file(file, data, true);
    if (written.bytes > 0) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  const Transfer read = transfer(data, written.bytes, [&](std::byte* to, std::size_t n, std::size_t at) {
    return ::pread(file.get(), to, n, static_cast<off_t>(at));
  });
  if (read.bytes == 0 || written.seconds <= 0 || read.seconds <= 0) return 0;
  // The seconds that a byte each way takes.
  return 2 / (written.seconds / static_cast<double>(written.bytes) + read.seconds / static_cast<double>(read.bytes));
}

DevicePeaks measure_cuda(int device, DevicePrecision precision) noexcept {
  try {
    const auto plugin = shim::load_cuda_plugin({});
    const PeaksCalls* calls = reinterpret_cast<PeaksEntry*>(plugin.symbol(kPeaksEntryName))(kPeaksVersion);
    return calls == nullptr ? DevicePeaks() : calls->measure(device, precision);
  } catch (const std::exception&) {  // the run is over; only a figure is lost
    return {};
  }
}

}  // namespace detent::profile
