#include "shim/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <limits>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "shim/library.h"

namespace detent::shim {
namespace {

// The part of the driver's C interface that is used here, declared anew: its header comes with the CUDA toolkit only.
using Init = int(unsigned flags);
using DeviceGetCount = int(int* count);
using GetErrorName = int(int code, const char** name);
constexpr int kSuccess = 0;

std::string name_of(const Library& library, int code) {
  const char* name = nullptr;
  const auto get = reinterpret_cast<GetErrorName*>(library.symbol("cuGetErrorName"));
  return get(code, &name) == kSuccess && name != nullptr ? name : fmt::format("error {}", code);
}

const CudaProbe& probe_of(const Library& plugin) {
  const CudaProbe* probe = reinterpret_cast<CudaProbeEntry*>(plugin.symbol(kCudaProbeEntryName))(kCudaProbeVersion);
  if (probe == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return *probe;
}

}  // namespace

CudaDriver find_cuda_driver(const std::string& name) {
  const auto library = Library::open({name});
  if (!library) {
    const char* reason = ::dlerror();
    return {0, fmt::format("no CUDA driver ({})", reason == nullptr ? name : reason)};
  }
  try {
    const auto init = reinterpret_cast<Init*>(library->symbol("cuInit"));
    const auto count = reinterpret_cast<DeviceGetCount*>(library->symbol("cuDeviceGetCount"));
    if (const int code = init(0); code != kSuccess)
      return {0, fmt::format("the CUDA driver does not start ({})", name_of(*library, code))};
    int devices = 0;
    if (const int code = count(&devices); code != kSuccess)
      return {0, fmt::format("the CUDA driver does not count its devices ({})", name_of(*library, code))};
    return {devices, devices > 0 ? "" : "the CUDA driver sees no device"};
  } catch (const Error& e) {  // a library of that name that is no driver
    return {0, fmt::format("no CUDA driver ({})", e.what())};
  }
}

void require_cuda(const std::vector<int>& devices, const CudaDriver& driver) {
  for (const int device : devices) {
    if (driver.devices == 0) {
      throw device_error(fmt::format("--device cuda:{}: {}", device, driver.reason),
                         "give --device cpu, or install NVIDIA's driver");
    }
    if (device >= driver.devices) {
      throw device_error(fmt::format("--device cuda:{}: the CUDA driver sees {} device{}", device, driver.devices,
                                     driver.devices == 1 ? "" : "s"),
                         "they are numbered from 0, and CUDA_VISIBLE_DEVICES can hide some");
    }
  }
}

void require_cuda(const std::vector<int>& devices) {
  if (devices.empty()) return;
  require_cuda(devices, find_cuda_driver());
  const Library plugin = load_cuda_plugin({});
  for (const int device : devices) probe_of(plugin).require(device);
}

std::uint64_t cuda_budget(const std::vector<int>& devices) {
  require_cuda(devices, find_cuda_driver());
  const Library plugin = load_cuda_plugin({});
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const int device : devices) least = std::min(least, probe_of(plugin).budget(device));
  return least;
}

namespace {

// The part of cuFile's C interface that is used here, declared anew: its header comes with a package of its own.
struct Status {
  int code;  // of cuFile
  int cuda;  // of the driver, where `code` says so
};
struct Description {
  int type;
  union {
    int fd;
    void* handle;
  } file;
  const void* operations;
};
static_assert(sizeof(Status) == 8 && sizeof(Description) == 24);

constexpr int kFileDescriptor = 1;
constexpr int kAllowItsOwnCopies = 1;  // of the boolean parameters: properties.allow_compat_mode
constexpr int kErrors = 5000;          // cuFile's own begin there

/// The module's name is the first word of a line.
std::string missing_module(const std::filesystem::path& modules) {
  std::ifstream file(modules);
  if (!file) return fmt::format("'{}' cannot be read", modules.string());
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("nvidia_fs ")) return {};
  }
  return "the kernel module nvidia-fs is not loaded";
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && (std::string_view(value) == "true" || std::string_view(value) == "1");
}

}  // namespace

struct CuFile::Calls {
  Status (*set_bool)(int parameter, bool value);
  Status (*open)();
  Status (*add)(void** handle, Description* description);
  void (*remove)(void* handle);
  ssize_t (*read)(void* handle, void* to, std::size_t size, off_t offset, off_t offset_in_memory);

  explicit Calls(const Library& library)
      : set_bool(reinterpret_cast<decltype(set_bool)>(library.symbol("cuFileSetParameterBool"))),
        open(reinterpret_cast<decltype(open)>(library.symbol("cuFileDriverOpen"))),
        add(reinterpret_cast<decltype(add)>(library.symbol("cuFileHandleRegister"))),
        remove(reinterpret_cast<decltype(remove)>(library.symbol("cuFileHandleDeregister"))),
        read(reinterpret_cast<decltype(read)>(library.symbol("cuFileRead"))) {}
};

CuFile::CuFile(std::unique_ptr<const Calls> calls) : calls_(std::move(calls)) {}

std::shared_ptr<const CuFile> CuFile::open(std::string& refusal, const CuFilePlaces& places) {
  const auto refuse = [&](std::string why) {
    refusal = std::move(why);
    return nullptr;
  };
  if (const auto driver = find_cuda_driver(places.driver); driver.devices == 0) return refuse(driver.reason);
  if (auto missing = missing_module(places.modules); !missing.empty()) return refuse(std::move(missing));
  if (is_set("CUFILE_FORCE_COMPAT_MODE"))
    return refuse("CUFILE_FORCE_COMPAT_MODE makes cuFile read through the host's memory");
  const auto library = Library::open({places.library});
  if (!library) {
    const char* why = ::dlerror();
    return refuse(fmt::format("cuFile cannot be loaded ({})", why == nullptr ? places.library : why));
  }
  std::unique_ptr<const Calls> calls;
  try {
    calls = std::make_unique<const Calls>(*library);
  } catch (const Error&) {
    return refuse(fmt::format("'{}' is too old, or no cuFile", library->name()));
  }
  if (calls->set_bool(kAllowItsOwnCopies, false).code != kSuccess)
    return refuse("cuFile cannot be kept from reading through the host's memory");
  // The thread stays behind when it is not back in time: nothing can end it.
  std::promise<Status> opened;
  auto answer = opened.get_future();
  std::thread([open = calls->open, promise = std::move(opened)]() mutable { promise.set_value(open()); }).detach();
  if (answer.wait_for(places.patience) != std::future_status::ready)
    return refuse(fmt::format("cuFile's driver did not open within {} s",
                              std::chrono::duration<double>(places.patience).count()));
  if (const Status status = answer.get(); status.code != kSuccess)
    return refuse(fmt::format("cuFile's driver does not open (error {}, CUDA {})", status.code, status.cuda));
  return std::shared_ptr<const CuFile>(new CuFile(std::move(calls)));  // the constructor is private
}

std::unique_ptr<CuFile::File> CuFile::file(int descriptor, std::string& refusal) const {
  Description description{};
  description.type = kFileDescriptor;
  description.file.fd = descriptor;
  void* handle = nullptr;
  if (const Status status = calls_->add(&handle, &description); status.code != kSuccess) {
    refusal = fmt::format("cuFile does not take files of this file system (error {})", status.code);
    return nullptr;
  }
  return std::make_unique<File>(File(this, handle));
}

CuFile::File::File(File&& other) noexcept
    : library_(std::exchange(other.library_, nullptr)), handle_(std::exchange(other.handle_, nullptr)) {}

CuFile::File::~File() {
  if (library_ != nullptr) library_->calls_->remove(handle_);
}

std::ptrdiff_t CuFile::File::read(void* to, std::size_t size, std::uint64_t offset) const {
  const ssize_t result = library_->calls_->read(handle_, to, size, static_cast<off_t>(offset), 0);
  // -1 says that errno tells more.
  return result == -1 ? -errno : result;
}

std::string CuFile::reason(std::ptrdiff_t result) {
  if (-result < kErrors) return std::strerror(static_cast<int>(-result));
  return fmt::format("cuFile's error {}", -result);
}

}  // namespace detent::shim
