// How fast records of the spool come into a GPU's memory, by each way, beside the disk alone: its bare blocks, 8 reads
// of 1 MiB under way, and through the host's buffers with checksums.
//   bench_device_reads DIRECTORY [DEVICE] [RECORD_MIB] [RECORDS]
// Exit status 1 when the way that `auto` takes has less than 90 % of the bare disk's rate, or GPUDirect Storage is
// slower than the buffers; 5 when there is no GPU.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "shim/cuda_driver.h"
#include "store/aligned_buffer.h"
#include "store/bounce.h"
#include "store/io_queue.h"
#include "store/open_device.h"
#include "store/spool.h"

namespace {

using namespace detent;
using Clock = std::chrono::steady_clock;
using Records = std::vector<store::RestingRecord>;

/// Takes what is read and copies it nowhere.
class NoDevice : public store::BounceBuffers {
 public:
  std::span<std::byte> slot(std::size_t number) override { return memory_.bytes().subspan(number * kPiece, kPiece); }
  void upload(std::size_t, std::size_t, void*) override {}
  void wait(std::size_t) override {}

 private:
  store::AlignedBuffer memory_{kPiece * kSlots};
};

Records write_records(store::Spool& spool, std::size_t size, std::size_t count) {
  const auto lane = spool.open("bench");
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < count; ++i) {
    auto words = std::make_shared<std::vector<std::uint64_t>>(size / sizeof(std::uint64_t));
    for (auto& word : *words) word = random();
    spool.put(lane, i,
              {{onnx::DataType::uint8, {static_cast<std::int64_t>(size)}, std::as_bytes(std::span(*words)), words}});
  }
  spool.sync();
  Records records;
  for (std::size_t i = 0; i < count; ++i) records.push_back(spool.resting(lane, i).value());
  return records;
}

/// Gigabytes a second, the median of three turns.
double rate_of(const Records& records, const std::function<void(const store::RestingRecord&)>& read) {
  std::vector<double> rates;
  for (int turn = 0; turn < 3; ++turn) {
    const UniqueFd file(::open(records.front().file.c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
    double bytes = 0;
    const auto begin = Clock::now();
    for (const auto& record : records) {
      read(record);
      bytes += static_cast<double>(record.size);
    }
    rates.push_back(bytes / std::chrono::duration<double>(Clock::now() - begin).count() / 1e9);
  }
  std::nth_element(rates.begin(), rates.begin() + 1, rates.end());
  return rates[1];
}

constexpr double kShare = 0.9;

/// The blocks of a record into the host's memory, and nothing done with them.
void read_bare(store::IoQueue& queue, store::DiskAccess access, const store::AlignedBuffer& memory,
               const store::RestingRecord& record) {
  constexpr std::size_t kPiece = store::BounceBuffers::kPiece;
  const UniqueFd file(::open(record.file.c_str(), O_RDONLY | O_CLOEXEC | store::open_flags(access)));
  std::vector<store::IoRequest> requests(store::IoQueue::kDepth);
  std::vector<store::IoRequest*> free;
  for (auto& request : requests) free.push_back(&request);
  std::size_t begin = 0, under_way = 0;
  while (begin < record.size || under_way > 0) {
    while (begin < record.size && !free.empty()) {
      store::IoRequest& request = *free.back();
      const auto slot = static_cast<std::size_t>(&request - requests.data());
      const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, record.size - begin));
      request = {file.get(), false, record.offset + begin, memory.bytes().subspan(slot * kPiece, length)};
      queue.start(request);
      free.pop_back();
      begin += length;
      ++under_way;
    }
    store::IoRequest& done = queue.finish();
    if (done.error != 0) throw resource_error(fmt::format("cannot read: {}", errno_text(done.error)));
    free.push_back(&done);
    --under_way;
  }
}

/// The bare disk's rate, the better of its ways past the page cache.
double measure_host(const Records& records) {
  NoDevice nowhere;
  double bare = 0;
  for (const auto access : {store::DiskAccess::uring, store::DiskAccess::direct, store::DiskAccess::buffered}) {
    try {
      const auto queue = store::make_io_queue(access);
      const store::AlignedBuffer memory(store::BounceBuffers::kPiece * store::IoQueue::kDepth);
      const double blocks = rate_of(records, [&](const auto& record) { read_bare(*queue, access, memory, record); });
      if (access != store::DiskAccess::buffered) bare = std::max(bare, blocks);
      store::BounceReader reader(access, nowhere);
      const double rate = rate_of(records, [&](const auto& record) { reader.read(record, nullptr); });
      fmt::print("host alone, {:<40} {:6.2f} GB/s bare, {:6.2f} GB/s with checksums\n", store::name_of(access), blocks,
                 rate);
    } catch (const Error& e) {
      fmt::print("host alone, {:<40} {}\n", store::name_of(access), e.what());
    }
  }
  return bare;
}

/// Gigabytes a second by each mode; 0 where it does not work.
std::map<GdsMode, double> measure_device(const Records& records, int device, const std::filesystem::path& directory) {
  std::map<GdsMode, double> rates;
  for (const auto& [mode, name] : {std::pair{GdsMode::off, "off"}, {GdsMode::on, "on"}, {GdsMode::automatic, "auto"}}) {
    try {
      const auto storage = store::open_cuda_storage(device, mode, directory);
      void* const to = storage->memory(records.front().size);
      rates[mode] = rate_of(records, [&](const auto& record) { storage->read(record, to); });
      fmt::print("gds {:<4} {:<43} {:6.2f} GB/s   ({})\n", name, storage->route().name(), rates[mode],
                 storage->route().reason);
    } catch (const Error& e) {
      fmt::print("gds {:<4} {}\n", name, e.what());
    }
  }
  return rates;
}

bool judge(double bare, std::map<GdsMode, double> rates) {
  const double share = bare > 0 ? rates[GdsMode::automatic] / bare : 0;
  fmt::print("{} the way of auto, of the bare disk: {:.0f} %, bound {:.0f} %\n", share >= kShare ? "met   " : "MISSED",
             100 * share, 100 * kShare);
  if (rates[GdsMode::on] == 0) {
    fmt::print("not measured: GPUDirect Storage beside the buffers\n");
    return share >= kShare;
  }
  const double ratio = rates[GdsMode::on] / rates[GdsMode::off];
  fmt::print("{} GPUDirect Storage beside the buffers: x {:.2f}, bound x 1\n", ratio >= 1 ? "met   " : "MISSED", ratio);
  return share >= kShare && ratio >= 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_device_reads DIRECTORY [DEVICE] [RECORD_MIB] [RECORDS]\n");
    return 2;
  }
  const auto number = [&](int position, long otherwise) {
    return argc > position ? std::atol(argv[position]) : otherwise;
  };
  try {
    const TempDir folder(argv[1]);
    store::SpoolOptions options;
    options.directory = folder.path();
    options.residency = store::Residency::disk;
    store::Spool spool(options);
    const auto records =
        write_records(spool, static_cast<std::size_t>(number(3, 64)) << 20, static_cast<std::size_t>(number(4, 64)));
    const double bare = measure_host(records);
    const int device = static_cast<int>(number(2, 0));
    shim::require_cuda({device});
    return judge(bare, measure_device(records, device, folder.path())) ? 0 : 1;
  } catch (const Error& e) {
    fmt::print(stderr, "{}; {}\n", e.what(), e.hint());
    return exit_code(e.kind());
  }
}
