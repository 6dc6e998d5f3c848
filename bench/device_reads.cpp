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
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "shim/cuda_driver.h"
#include "store/buffers.h"
#include "store/device_route.h"
#include "store/io_queue.h"
#include "store/spool.h"

namespace {

using namespace detent;
using Clock = std::chrono::steady_clock;
using Records = std::vector<store::RecordOnDisk>;

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

constexpr double kShare = 0.9;
constexpr int kRounds = 5;

/// The blocks of a record into the host's memory, and nothing done with them.
void read_bare(store::IoQueue& queue, store::DiskAccess access, const store::AlignedBuffer& memory,
               const store::RecordOnDisk& record) {
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

/// A way to read, and its gigabytes a second in each round.
struct Way {
  std::string name;
  std::function<void(const store::RecordOnDisk&)> read;
  std::vector<double> rates{};

  double median() const {
    auto sorted = rates;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

double rate_of(const Records& records, const Way& way) {
  const UniqueFd file(::open(records.front().file.c_str(), O_RDONLY | O_CLOEXEC));
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  double bytes = 0;
  const auto begin = Clock::now();
  for (const auto& record : records) {
    way.read(record);
    bytes += static_cast<double>(record.size);
  }
  return bytes / std::chrono::duration<double>(Clock::now() - begin).count() / 1e9;
}

/// Blocks of the disk past the page cache, and the same through the host's buffers with checksums.
void add_host(std::vector<Way>& ways, NoDevice& nowhere) {
  const auto memory = std::make_shared<store::AlignedBuffer>(store::BounceBuffers::kPiece * store::IoQueue::kDepth);
  for (const auto access : {store::DiskAccess::uring, store::DiskAccess::direct}) {
    try {
      const std::shared_ptr<store::IoQueue> queue = store::make_io_queue(access);
      const auto reader = std::make_shared<store::BounceReader>(access, nowhere);
      ways.push_back({fmt::format("{}, bare", store::name_of(access)),
                      [=](const auto& record) { read_bare(*queue, access, *memory, record); }});
      ways.push_back({fmt::format("{}, with checksums", store::name_of(access)),
                      [=](const auto& record) { reader->read(record, nullptr); }});
    } catch (const Error& e) {
      fmt::print("{}: {}\n", store::name_of(access), e.what());
    }
  }
}

void add_device(std::vector<Way>& ways, int device, const std::filesystem::path& directory, std::uint64_t size) {
  for (const auto& [mode, name] : {std::pair{GdsMode::off, "off"}, {GdsMode::on, "on"}, {GdsMode::automatic, "auto"}}) {
    try {
      const std::shared_ptr<store::DeviceStorage> storage = store::open_cuda_storage(device, mode, directory);
      void* const to = storage->memory(size);
      fmt::print("gds {}: {} ({})\n", name, storage->route().name(), storage->route().reason);
      ways.push_back({fmt::format("gds {}", name), [=](const auto& record) { storage->read(record, to); }});
    } catch (const Error& e) {
      fmt::print("gds {}: {}\n", name, e.what());
    }
  }
}

/// In turns, since a disk that others use as well is faster at one time than at another; of two ways, the median of the
/// rounds' ratios.
double ratio(const std::vector<Way>& ways, const std::string& first, const std::string& second) {
  const auto ending = [&](const std::string& end) {
    std::vector<double> best;  // of each round
    for (const Way& way : ways) {
      if (!way.name.ends_with(end)) continue;
      best.resize(way.rates.size());
      for (std::size_t i = 0; i < best.size(); ++i) best[i] = std::max(best[i], way.rates[i]);
    }
    return best;
  };
  const auto above = ending(first), below = ending(second);
  if (above.empty() || below.empty()) return 0;
  Way ratios;
  for (std::size_t i = 0; i < above.size(); ++i) ratios.rates.push_back(above[i] / below[i]);
  return ratios.median();
}

bool judge(const std::vector<Way>& ways) {
  const double share = ratio(ways, "gds auto", "bare"), direct = ratio(ways, "gds on", "gds off");
  fmt::print("{} the way of auto, of the bare disk: {:.0f} %, bound {:.0f} %\n", share >= kShare ? "met   " : "MISSED",
             100 * share, 100 * kShare);
  if (direct == 0) {
    fmt::print("not measured: GPUDirect Storage beside the buffers\n");
    return share >= kShare;
  }
  fmt::print("{} GPUDirect Storage beside the buffers: x {:.2f}, bound x 1\n", direct >= 1 ? "met   " : "MISSED",
             direct);
  return share >= kShare && direct >= 1;
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
    const int device = static_cast<int>(number(2, 0));
    shim::require_cuda({device});
    NoDevice nowhere;
    std::vector<Way> ways;
    add_host(ways, nowhere);
    add_device(ways, device, folder.path(), records.front().size);
    for (int round = 0; round < kRounds; ++round)
      for (Way& way : ways) way.rates.push_back(rate_of(records, way));
    for (const Way& way : ways) fmt::print("{:<40} {:6.2f} GB/s\n", way.name, way.median());
    return judge(ways) ? 0 : 1;
  } catch (const Error& e) {
    fmt::print(stderr, "{}; {}\n", e.what(), e.hint());
    return exit_code(e.kind());
  }
}
