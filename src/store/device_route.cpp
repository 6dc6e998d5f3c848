#include "store/device_route.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "shim/library.h"
#include "store/lane_file.h"

namespace detent::store {
namespace {

constexpr double kMargin = 1.1;
constexpr const char* kStorage = "GPUDirect Storage";

std::string gigabytes(double rate) { return fmt::format("{:.2g} GB/s", rate / 1e9); }

DeviceRoute pinned(const RouteProbe& probe, const std::string& why) {
  const ProbedAccess access = probe.access();
  return {false, access.access, access.reason.empty() ? why : fmt::format("{}; host reads: {}", why, access.reason)};
}

}  // namespace

std::string DeviceRoute::name() const {
  return direct_storage ? kStorage : fmt::format("pinned buffers filled by {} reads", name_of(access));
}

DeviceRoute choose_route(GdsMode mode, const RouteProbe& probe) {
  if (mode == GdsMode::off) return pinned(probe, "asked for (--set gds=off)");
  const std::string refusal = probe.refusal();
  if (mode == GdsMode::on) {
    if (refusal.empty()) return {true, DiskAccess::direct, "asked for (--set gds=on)"};
    throw device_error(fmt::format("--set gds=on: {}", refusal),
                       "give --set gds=auto or off, or choose another disk with --work-dir");
  }
  if (!refusal.empty()) return pinned(probe, fmt::format("no {} ({})", kStorage, refusal));
  DeviceRoute through_host = pinned(probe, "");
  DeviceRoute past_host{true, DiskAccess::direct, ""};
  const double host_rate = probe.rate(through_host), storage_rate = probe.rate(past_host);
  const std::string rates =
      fmt::format("{} {}, {} {}", kStorage, gigabytes(storage_rate), through_host.name(), gigabytes(host_rate));
  DeviceRoute chosen = host_rate > kMargin * storage_rate ? std::move(through_host) : std::move(past_host);
  chosen.reason = rates;
  return chosen;
}

ProbePayload::ProbePayload(const std::filesystem::path& directory) {
  std::string name = (directory / "device-probe-XXXXXX").string();
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid())
    throw failed_call(errno, fmt::format("cannot make a file in '{}'", directory.string()), ErrorKind::resource);
  record_ = {name, 0, kBytes, 0, {}};
  std::vector<std::uint64_t> words(kBytes / sizeof(std::uint64_t));
  std::uint64_t random = 0x9E3779B97F4A7C15;  // no file system can compress this
  for (auto& word : words) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    word = random;
  }
  const auto bytes = std::as_bytes(std::span(words));
  PayloadHash hash;
  hash.add(bytes);
  record_.hash = hash.result();
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  if (done < bytes.size() || ::fdatasync(file.get()) != 0) {
    const int code = errno;
    ::unlink(name.c_str());
    throw resource_error(fmt::format("cannot write '{}': {}", name, errno_text(code)),
                         "choose a directory on another disk with --work-dir");
  }
  drop_pages();
}

ProbePayload::~ProbePayload() { ::unlink(record_.file.c_str()); }

void ProbePayload::drop_pages() const {
  const UniqueFd file(::open(record_.file.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.valid()) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

double measure_reads(DeviceReader& reader, const ProbePayload& payload, void* to) {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int turn = 0; turn < 2; ++turn) {  // the first also pays for what a way makes once
    payload.drop_pages();
    const auto begin = Clock::now();
    reader.read(payload.record(), to);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, static_cast<double>(payload.record().size) / std::max(seconds, 1e-9));
  }
  return best;
}

std::unique_ptr<DeviceStorage> open_cuda_storage(int device, GdsMode mode, const std::filesystem::path& directory) {
  const auto plugin = shim::load_cuda_plugin({});
  const auto entry = reinterpret_cast<StorageEntry*>(plugin.symbol(kStorageEntryName));
  const StorageCalls* calls = entry(kStorageVersion);
  if (calls == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return calls->open(device, mode, directory);
}

namespace {

constexpr std::size_t kPiece = BounceBuffers::kPiece;
constexpr std::size_t kSlots = BounceBuffers::kSlots;

Error unreadable(const RecordOnDisk& record, const std::string& why) {
  return resource_error(fmt::format("cannot read '{}': {}", record.file.string(), why),
                        "choose a directory on another disk with --work-dir");
}

// One payload on its way. Pieces are read in any order and go on in their own: the checksum needs that.
class PayloadTransfer {
 public:
  PayloadTransfer(const RecordOnDisk& record, int fd, IoQueue& queue, BounceBuffers& buffers, void* to)
      : record_(record),
        fd_(fd),
        queue_(queue),
        buffers_(buffers),
        to_(static_cast<std::byte*>(to)),
        pieces_((record.size + kPiece - 1) / kPiece) {}
  PayloadTransfer(const PayloadTransfer&) = delete;
  PayloadTransfer& operator=(const PayloadTransfer&) = delete;
  // Reads and copies must not outlive it, whatever ended it.
  ~PayloadTransfer() {
    while (under_way_ > 0) finish_one();
    try {
      for (std::size_t slot = 0; slot < kSlots; ++slot) buffers_.wait(slot);
    } catch (const Error&) {  // the device failed, which has been told or will be by the next call
    }
  }

  void run() {
    while (passed_ < pieces_) {
      while (error_ == 0 && under_way_ < IoQueue::kDepth && started_ < std::min(pieces_, passed_ + kSlots)) start_one();
      finish_one();
      if (error_ != 0) throw unreadable(record_, errno_text(error_));
      if (cut_) throw unreadable(record_, "the file ends too soon");
      while (passed_ < started_ && arrived_[passed_ % kSlots]) pass_on();
    }
    for (std::size_t slot = 0; slot < kSlots; ++slot) buffers_.wait(slot);
    if (hash_.result() != record_.hash) throw unreadable(record_, "what was stored there is damaged");
  }

 private:
  std::size_t length(std::size_t piece) const {
    return static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, record_.size - piece * kPiece));
  }

  void start_one() {
    const std::size_t slot = started_ % kSlots;
    buffers_.wait(slot);
    arrived_[slot] = false;
    requests_[slot] = {fd_, false, record_.offset + started_ * kPiece, buffers_.slot(slot).first(length(started_))};
    queue_.start(requests_[slot]);
    ++under_way_;
    ++started_;
  }

  void finish_one() {
    const IoRequest& request = queue_.finish();
    --under_way_;
    if (request.error != 0) error_ = request.error;
    if (request.done < request.data.size()) cut_ = true;
    arrived_[static_cast<std::size_t>(&request - requests_.data())] = true;
  }

  void pass_on() {
    const std::size_t slot = passed_ % kSlots;
    hash_.add(requests_[slot].data);
    buffers_.upload(slot, length(passed_), to_ + passed_ * kPiece);
    ++passed_;
  }

  const RecordOnDisk& record_;
  const int fd_;
  IoQueue& queue_;
  BounceBuffers& buffers_;
  std::byte* const to_;
  const std::size_t pieces_;
  std::array<IoRequest, kSlots> requests_;
  std::array<bool, kSlots> arrived_{};
  std::size_t started_ = 0;  // pieces
  std::size_t passed_ = 0;   // pieces that went on to the device
  std::size_t under_way_ = 0;
  int error_ = 0;
  bool cut_ = false;
  PayloadHash hash_;
};

}  // namespace

BounceReader::BounceReader(DiskAccess access, BounceBuffers& buffers)
    : access_(access), buffers_(buffers), queue_(make_io_queue(access)) {}

void BounceReader::read(const RecordOnDisk& record, void* to) {
  if (record.size == 0) return;
  const UniqueFd file(::open(record.file.c_str(), O_RDONLY | O_CLOEXEC | open_flags(access_)));
  if (!file.valid()) throw unreadable(record, errno_text(errno));
  PayloadTransfer(record, file.get(), *queue_, buffers_, to).run();
}

}  // namespace detent::store
