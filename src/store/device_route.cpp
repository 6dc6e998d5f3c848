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
#include "base/failure.h"
#include "base/file.h"
#include "store/io_queue.h"
#include "store/payload_hash.h"

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
    throw device_error(fmt::format("--set gds on: {}", refusal),
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

}  // namespace detent::store
