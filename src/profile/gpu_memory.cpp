#include "profile/gpu_memory.h"

#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "shim/library.h"

namespace detent::profile {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kAmd = "0x1002";

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto begin = std::min(text.find_first_not_of(" \t"), text.size());
  const auto [end, failed] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  if (failed != std::errc()) return std::nullopt;
  return value;
}

std::uint64_t number_in(const fs::path& file) { return number(first_line(file)).value_or(0); }

std::vector<fs::path> entries(const fs::path& folder) {
  try {
    return paths::entries_of(folder);
  } catch (const Error&) {  // there is no such driver, or it may not be asked
    return {};
  }
}

// A file that this process has open on a device, in lines "NAME:\tVALUE" (Documentation/gpu/drm-usage-stats.rst).
struct Client {
  std::string driver, address, id;
  std::optional<std::uint64_t> bytes;
};

Client client_of(const fs::path& file) {
  Client client;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto name = std::string_view(line).substr(0, colon);
    auto value = std::string_view(line).substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
    if (name == "drm-driver") client.driver = value;
    if (name == "drm-pdev") client.address = value;
    if (name == "drm-client-id") client.id = value;
    if (name != "drm-memory-vram") continue;
    const std::uint64_t unit = value.ends_with("KiB") ? 1 << 10 : value.ends_with("MiB") ? 1 << 20 : 1;
    if (const auto found = number(value)) client.bytes = *found * unit;
  }
  return client;
}

}  // namespace

std::optional<AmdGpus> AmdGpus::open(const AmdPlaces& places) {
  auto cards = visible(visible(cards_of(places.devices), "ROCR_VISIBLE_DEVICES"), "HIP_VISIBLE_DEVICES");
  if (cards.empty()) return std::nullopt;
  return AmdGpus(std::move(cards), places.own_files);
}

// In the order of their addresses, which is that in which ROCm counts them.
std::vector<AmdGpus::Card> AmdGpus::cards_of(const fs::path& devices) {
  std::vector<Card> cards;
  for (const auto& entry : entries(devices)) {
    const auto name = entry.filename().string();
    const auto digits = std::string_view(name).substr(std::min<std::size_t>(name.size(), 4));
    // Beside card0 there are its sockets, as card0-DP-1, and renderD128.
    if (!name.starts_with("card") || digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) continue;
    const auto folder = entry / "device";
    std::error_code failed;
    if (first_line(folder / "vendor") != kAmd || !fs::exists(folder / "mem_info_vram_used", failed)) continue;
    const auto id = first_line(folder / "unique_id");
    const auto address = fs::canonical(folder, failed).filename().string();
    cards.push_back({address, folder, id.empty() ? std::string() : "GPU-" + id});
  }
  std::sort(cards.begin(), cards.end(), [](const Card& a, const Card& b) { return a.address < b.address; });
  return cards;
}

// Numbers or ids between commas. As in ROCm, what is no device ends the list.
std::vector<AmdGpus::Card> AmdGpus::visible(std::vector<Card> cards, const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) return cards;
  std::vector<Card> chosen;
  for (std::string_view rest(value); !rest.empty();) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto index = number(word);
    const auto found =
        index ? cards.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(*index, cards.size()))
              : std::find_if(cards.begin(), cards.end(), [&](const Card& card) { return card.id == word; });
    if (found == cards.end()) break;
    chosen.push_back(*found);
  }
  return chosen;
}

// nullopt: the driver does not tell. Several files may be one client, whose memory counts once.
std::optional<std::uint64_t> AmdGpus::used_by_us() const {
  std::set<std::pair<std::string, std::string>> seen;
  std::optional<std::uint64_t> sum;
  for (const auto& entry : entries(own_files_)) {
    const auto client = client_of(entry);
    const bool is_visible =
        std::any_of(cards_.begin(), cards_.end(), [&](const Card& card) { return card.address == client.address; });
    if (client.driver != "amdgpu" || !is_visible || !client.bytes) continue;
    if (!seen.emplace(client.address, client.id).second) continue;
    sum = sum.value_or(0) + *client.bytes;
  }
  return sum;
}

GpuMemory AmdGpus::now() const {
  GpuMemory memory;
  for (const auto& card : cards_) {
    memory.bytes += number_in(card.folder / "mem_info_vram_used");
    const auto busy = std::min<std::uint64_t>(number_in(card.folder / "gpu_busy_percent"), 100);
    memory.busy_percent = std::max(memory.busy_percent, static_cast<unsigned>(busy));
  }
  if (const auto own = used_by_us()) {
    memory.bytes = *own;
    memory.of_this_process = true;
  }
  return memory;
}

namespace {

// The part of NVML's C interface that is used here, declared anew: its header comes with the CUDA toolkit only.
using Device = struct nvmlDevice_st*;
enum Status : int { kSuccess = 0, kInsufficientSize = 7 };

struct MemoryInfo {
  unsigned long long total, free, used;
};

struct Utilization {
  unsigned gpu, memory;  // percent
};

struct ProcessInfo {
  unsigned pid;
  unsigned long long used;  // all ones: not available
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(MemoryInfo) == 24 && sizeof(ProcessInfo) == 24);

constexpr unsigned long long kNotAvailable = ~0ULL;

/// The kernel gives the namespace that the machine started with this number.
bool in_first_pid_namespace() {
  constexpr std::uint64_t kFirst = 0xEFFFFFFC;  // an ino_t of Windows has 16 bits
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 && info.st_ino == kFirst;
}

template <typename Function>
void take(const shim::Library& library, Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(library.symbol(name));
}

}  // namespace

struct GpuMeter::Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device_at)(unsigned, Device*) = nullptr;
  int (*memory)(Device, MemoryInfo*) = nullptr;
  int (*processes)(Device, unsigned*, ProcessInfo*) = nullptr;  // may be missing
  int (*utilization)(Device, Utilization*) = nullptr;           // may be missing
  std::vector<Device> devices;
  std::vector<ProcessInfo> buffer;
  bool sees_own_pid = false;

  explicit Nvml(const shim::Library& library) {
    take(library, init, "nvmlInit_v2");
    take(library, shutdown, "nvmlShutdown");
    take(library, count, "nvmlDeviceGetCount_v2");
    take(library, device_at, "nvmlDeviceGetHandleByIndex_v2");
    take(library, memory, "nvmlDeviceGetMemoryInfo");
    // The second version first: drivers 535.43 to 535.86 gave the third one longer records under the same name.
    for (const char* name : {"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"}) {
      try {
        take(library, processes, name);
        break;
      } catch (const Error&) {  // a driver before 2020, or one that has dropped it
      }
    }
    try {
      take(library, utilization, "nvmlDeviceGetUtilizationRates");
    } catch (const Error&) {
    }
    if (init() != kSuccess) init = nullptr;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (init != nullptr) shutdown();
  }

  bool find_devices() {
    unsigned n = 0;
    if (init == nullptr || count(&n) != kSuccess) return false;
    for (unsigned i = 0; i < n; ++i) {
      Device device = nullptr;
      if (device_at(i, &device) == kSuccess) devices.push_back(device);
    }
    return !devices.empty();
  }

  unsigned busy_percent() const {
    unsigned busiest = 0;
    for (const Device device : devices) {
      Utilization found{};
      if (utilization != nullptr && utilization(device, &found) == kSuccess)
        busiest = std::max(busiest, std::min(found.gpu, 100U));
    }
    return busiest;
  }

  /// What this process uses on `device`; nullopt when it is not listed there or the driver does not tell.
  std::optional<std::uint64_t> used_by_us(Device device, bool& told) {
    for (std::size_t room = 64; room <= 65536; room *= 4) {
      // Twice the room that is spoken of, in case the records are longer than they should be.
      if (buffer.size() < 2 * room) buffer.resize(2 * room);
      auto n = static_cast<unsigned>(room);
      const int status = processes(device, &n, buffer.data());
      if (status == kInsufficientSize) continue;
      if (status != kSuccess) break;
      told = true;
      std::optional<std::uint64_t> sum;
      for (unsigned i = 0; i < n && i < room; ++i) {
        if (buffer[i].pid != static_cast<unsigned>(::getpid())) continue;
        if (buffer[i].used == kNotAvailable) {
          told = false;
          return std::nullopt;
        }
        sum = sum.value_or(0) + buffer[i].used;
      }
      return sum;
    }
    told = false;
    return std::nullopt;
  }
};

GpuMeter::GpuMeter(std::unique_ptr<Nvml> nvml, std::optional<AmdGpus> amd) noexcept
    : nvml_(std::move(nvml)), amd_(std::move(amd)) {}
GpuMeter::GpuMeter(GpuMeter&&) noexcept = default;
GpuMeter& GpuMeter::operator=(GpuMeter&&) noexcept = default;
GpuMeter::~GpuMeter() = default;

std::unique_ptr<GpuMeter::Nvml> GpuMeter::open_nvml(const Options& options) {
  try {
    const auto library = shim::Library::open({options.library});
    if (!library) return nullptr;
    auto nvml = std::make_unique<Nvml>(*library);
    if (!nvml->find_devices()) return nullptr;
    nvml->sees_own_pid = options.sees_own_pid.value_or(in_first_pid_namespace());
    return nvml;
  } catch (const Error&) {  // not the library it is named for
    return nullptr;
  }
}

std::optional<GpuMeter> GpuMeter::open(const Options& options) {
  auto nvml = open_nvml(options);
  auto amd = AmdGpus::open(options.amd);
  if (nvml == nullptr && !amd) return std::nullopt;
  return GpuMeter(std::move(nvml), std::move(amd));
}

bool GpuMeter::driver_is_loaded() noexcept {
  // Not by dlopen(RTLD_NOLOAD), which looks through the folders of the system for a library that is not loaded.
  const auto is_driver = [](dl_phdr_info* library, std::size_t, void*) -> int {
    const std::string_view path = library->dlpi_name, name = path.substr(path.rfind('/') + 1);
    return name.starts_with("libcuda.so") || name.starts_with("libhsa-runtime64.so");
  };
  return ::dl_iterate_phdr(is_driver, nullptr) != 0;
}

// Of both makers' devices together.
GpuMemory GpuMeter::now() {
  if (nvml_ == nullptr) return amd_->now();
  auto memory = nvidia_now();
  if (!amd_) return memory;
  const auto more = amd_->now();
  memory.bytes += more.bytes;
  memory.of_this_process = memory.of_this_process && more.of_this_process;
  memory.busy_percent = std::max(memory.busy_percent, more.busy_percent);
  return memory;
}

GpuMemory GpuMeter::nvidia_now() {
  std::uint64_t own = 0;
  bool every_device_told = nvml_->processes != nullptr;
  for (const Device device : nvml_->devices) {
    if (nvml_->processes == nullptr) break;
    bool told = false;
    const auto used = nvml_->used_by_us(device, told);
    if (used) nvml_->sees_own_pid = true;
    own += used.value_or(0);
    every_device_told = every_device_told && told;
  }
  // Not listed means not used, but only where the process would be listed under the number it knows itself by.
  const unsigned busy = nvml_->busy_percent();
  if (own > 0 || (every_device_told && nvml_->sees_own_pid)) return {own, true, busy};
  std::uint64_t used = 0;
  for (const Device device : nvml_->devices) {
    MemoryInfo info{};
    if (nvml_->memory(device, &info) == kSuccess) used += info.used;
  }
  return {used, false, busy};
}

}  // namespace detent::profile
