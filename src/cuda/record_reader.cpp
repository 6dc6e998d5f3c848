#include "cuda/record_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "store/aligned_buffer.h"
#include "store/bounce.h"

namespace detent::cuda {
namespace {

constexpr std::uint64_t kBudgetOfProbe = std::uint64_t{64} << 20;

/// Past the host. One read of the library does not keep a fast disk busy, so large payloads are read in parts by
/// several threads.
class StorageReader : public store::DeviceReader {
 public:
  StorageReader(Device& device, const shim::CuFile& library) : device_(device), library_(library) {}

  void read(const store::RecordOnDisk& record, void* to) override {
    use(record.file);
    const std::uint64_t parts = std::clamp<std::uint64_t>(record.size / kPart, 1, kMostParts);
    const std::uint64_t length = store::whole_blocks((record.size + parts - 1) / parts);
    std::vector<std::future<void>> others;
    for (std::uint64_t begin = length; begin < record.size; begin += length) {
      others.push_back(std::async(std::launch::async, [=, this, &record] {
        device_.current();
        read_part(record, begin, std::min(begin + length, record.size), to);
      }));
    }
    read_part(record, 0, std::min(length, record.size), to);
    for (auto& other : others) other.get();
  }

 private:
  static constexpr std::uint64_t kPart = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kMostParts = 8;

  void read_part(const store::RecordOnDisk& record, std::uint64_t begin, std::uint64_t end, void* to) const {
    while (begin < end) {
      const auto n = known_->read(static_cast<std::byte*>(to) + begin, end - begin, record.offset + begin);
      if (n <= 0) {
        throw resource_error(fmt::format("cannot read '{}' by GPUDirect Storage: {}", record.file.string(),
                                         n == 0 ? "the file ends too soon" : shim::CuFile::reason(n)),
                             "choose a directory on another disk with --work-dir");
      }
      begin += static_cast<std::uint64_t>(n);
    }
  }

  // The records of a layer are in one file.
  void use(const std::filesystem::path& path) {
    if (known_ && path == path_) return;
    known_.reset();
    file_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    std::string refusal;
    if (!file_.valid()) {
      refusal = errno_text(errno);
    } else {
      known_ = library_.file(file_.get(), refusal);
    }
    if (!known_) throw resource_error(fmt::format("cannot open '{}': {}", path.string(), refusal));
    path_ = path;
  }

  Device& device_;
  const shim::CuFile& library_;
  std::filesystem::path path_;
  UniqueFd file_;
  std::unique_ptr<shim::CuFile::File> known_;
};

}  // namespace

/// Pinned memory that the device's second queue copies from.
class RecordReader::Buffers : public store::BounceBuffers {
 public:
  explicit Buffers(Device& device) : device_(device), memory_(kSlots * kPiece, device.pins()) {}

  std::span<std::byte> slot(std::size_t number) override {
    return memory_.as<std::byte>().subspan(number * kPiece, kPiece);
  }
  void upload(std::size_t number, std::size_t bytes, void* to) override {
    device_.clock().queued(device_.copies(), DeviceLane::copy, "stored sample", {bytes, 0},
                           [&] { device_.copies().upload(to, slot(number).data(), bytes); });
    copied_[number].record(device_.copies());
    copies_[number] = true;
  }
  void wait(std::size_t number) override {
    if (!copies_[number]) return;
    copied_[number].wait();
    copies_[number] = false;
  }

 private:
  Device& device_;
  HostMemory memory_;
  std::array<Event, kSlots> copied_;
  std::array<bool, kSlots> copies_{};
};

namespace {

/// A reader with the buffers that it reads through.
template <class Buffers>
class PinnedReader : public store::DeviceReader {
 public:
  PinnedReader(Device& device, store::DiskAccess access) : buffers_(device), reader_(access, buffers_) {}
  void read(const store::RecordOnDisk& record, void* to) override { reader_.read(record, to); }

 private:
  Buffers buffers_;
  store::BounceReader reader_;
};

}  // namespace

RecordReader::RecordReader(Device& device, GdsMode mode, const std::filesystem::path& directory,
                           const shim::CuFilePlaces& places)
    : device_(device),
      places_(places),
      route_(store::choose_route(
          mode, {[&] { return refusal(directory); }, [&] { return store::probe_access(directory, kBudgetOfProbe); },
                 [&](const store::DeviceRoute& route) { return rate(route, directory); }})),
      reader_(open(route_)) {}

RecordReader::~RecordReader() = default;

void RecordReader::read(const store::RecordOnDisk& record, void* to) {
  if (record.size > 0) reader_->read(record, to);
}

std::string RecordReader::note() const {
  return fmt::format("cuda:{} read spooled samples by {}: {}", device_.number(), route_.name(), route_.reason);
}

// Reading a few bytes that way tells most.
std::string RecordReader::refusal(const std::filesystem::path& directory) {
  std::string why;
  cufile_ = shim::CuFile::open(why, places_);
  if (!cufile_) return why;
  try {
    const store::ProbePayload payload(directory);
    const DeviceMemory to(device_.memory(), store::ProbePayload::kBytes, "a test of GPUDirect Storage");
    StorageReader(device_, *cufile_).read(payload.record(), to.address());
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

double RecordReader::rate(const store::DeviceRoute& route, const std::filesystem::path& directory) {
  const store::ProbePayload payload(directory);
  const DeviceMemory to(device_.memory(), store::ProbePayload::kBytes, "a test of reading");
  return store::measure_reads(*open(route), payload, to.address());
}

std::unique_ptr<store::DeviceReader> RecordReader::open(const store::DeviceRoute& route) {
  if (route.direct_storage) return std::make_unique<StorageReader>(device_, *cufile_);
  return std::make_unique<PinnedReader<Buffers>>(device_, route.access);
}

}  // namespace detent::cuda
