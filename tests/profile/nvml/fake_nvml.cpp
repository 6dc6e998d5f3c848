// A stand-in for the driver's library: devices, memory and processes as the environment says.
//   FAKE_NVML_INIT     what nvmlInit_v2 returns (default 0)
//   FAKE_NVML_DEVICES  number of devices (default 1); device i has (i + 1) * 1000 MiB in use
//   FAKE_NVML_SELF     MiB that this process uses on each device; "na": listed without a figure; unset: not listed
//   FAKE_NVML_OTHERS   number of other processes that come first in the list
//   FAKE_NVML_BUSY     percent that device 0 is busy; each further one is half as busy (default 0)
//   FAKE_NVML_STATUS   what the list of processes returns (default 0)
// fake_nvml_use(n) takes the place of FAKE_NVML_SELF while other threads ask, until fake_nvml_use(-1).
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace {

constexpr unsigned long long kMiB = 1 << 20;
std::atomic<int> initialized = 0;
std::atomic<long> in_use = -1;  // MiB

unsigned setting(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

struct Info {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct MemoryInfo {
  unsigned long long total, free, used;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const int status = static_cast<int>(setting("FAKE_NVML_INIT", 0));
  initialized += status == 0;
  return status;
}

int nvmlShutdown() {
  --initialized;
  return 0;
}

int fake_nvml_initialized() { return initialized; }
void fake_nvml_use(long mebibytes) { in_use = mebibytes; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = setting("FAKE_NVML_DEVICES", 1);
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<std::uintptr_t>(index + 1));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, MemoryInfo* info) {
  info->total = 100000 * kMiB;
  info->used = reinterpret_cast<std::uintptr_t>(device) * 1000 * kMiB;
  info->free = info->total - info->used;
  return 0;
}

struct Utilization {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  *rates = {setting("FAKE_NVML_BUSY", 0) / static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device)), 1};
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void*, unsigned* count, Info* list) {
  if (const unsigned status = setting("FAKE_NVML_STATUS", 0); status != 0) return static_cast<int>(status);
  const std::string given = in_use >= 0 ? std::to_string(in_use) : "";
  const char* self = given.empty() ? std::getenv("FAKE_NVML_SELF") : given.c_str();
  const unsigned others = setting("FAKE_NVML_OTHERS", 0);
  const unsigned needed = others + (self != nullptr ? 1 : 0);
  const unsigned room = *count;
  *count = needed;
  if (room < needed) return 7;
  for (unsigned i = 0; i < others; ++i) list[i] = {1000000000 + i, 77 * kMiB, ~0U, ~0U};
  if (self != nullptr) {
    const unsigned long long used = std::string(self) == "na" ? ~0ULL : std::strtoull(self, nullptr, 10) * kMiB;
    list[others] = {static_cast<unsigned>(::getpid()), used, ~0U, ~0U};
  }
  return 0;
}

}  // extern "C"
