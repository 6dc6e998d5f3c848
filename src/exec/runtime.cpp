#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/failpoint.h"
#include "exec/providers.h"
#include "exec/runtime_impl.h"
#include "shim/library.h"

namespace detent::exec {
namespace {

void ignore_log(void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {}

// Throws through the runtime, whose own allocators do the same: a null pointer it would write to.
void* cache_allocate(OrtAllocator* self, std::size_t size) {
  return static_cast<Runtime::Impl::Allocator*>(self)->cache->allocate(size);
}
void cache_free(OrtAllocator* self, void* block) { static_cast<Runtime::Impl::Allocator*>(self)->cache->free(block); }
const OrtMemoryInfo* cache_info(const OrtAllocator* self) {
  return static_cast<const Runtime::Impl::Allocator*>(self)->info;
}

/// The library has one environment for the whole process, and that one allocator: a second one would take the place of
/// the first, in the midst of its sessions. So runs side by side share what the first of them made.
struct Shared {
  std::mutex mutex;
  std::weak_ptr<Runtime::Impl> alive;
  const Runtime::Impl* registered = nullptr;
  std::atomic<pid_t> process = 0;  // that has it
};
Shared& shared() {
  static Shared shared;
  return shared;
}

struct Loaded {
  std::string version, name;
};

// From here on the functions of Ort:: are those of this library.
Loaded load(const std::optional<std::filesystem::path>& library) {
  const auto loaded = shim::load_onnxruntime(library);
  using GetApiBase = const OrtApiBase* (*)();
  const auto* base = reinterpret_cast<GetApiBase>(loaded.symbol("OrtGetApiBase"))();
  const std::string version = base->GetVersionString();
  const OrtApi* api = base->GetApi(ORT_API_VERSION);
  if (api == nullptr) {
    throw device_error(fmt::format("ONNX Runtime {} ('{}') is too old: detent needs 1.{} or later", version,
                                   loaded.name(), ORT_API_VERSION),
                       "install a newer one (pip install --upgrade onnxruntime)");
  }
  Ort::InitApi(api);
  return {version, loaded.name()};
}

}  // namespace

Providers available_providers(const std::optional<std::filesystem::path>& library) {
  const auto loaded = load(library);
  return {Ort::GetAvailableProviders(), fmt::format("ONNX Runtime {}", loaded.version)};
}

Runtime::Impl::Impl(std::string runtime_version, std::string runtime_library)
    : version(std::move(runtime_version)), library(std::move(runtime_library)) {
  // Errors come back as exceptions with the same text, so nothing is lost by not printing the log.
  env = Ort::Env(ORT_LOGGING_LEVEL_FATAL, "detent", ignore_log, nullptr);
  env.DisableTelemetryEvents();
  allocator.version = ORT_API_VERSION;
  allocator.Alloc = cache_allocate;
  allocator.Free = cache_free;
  allocator.Info = cache_info;
  allocator.Reserve = cache_allocate;
  allocator.cache = &cache;
  allocator.info = Ort::MemoryInfo("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault);
  Ort::ThrowOnError(Ort::GetApi().RegisterAllocator(env, &allocator));
  shared().registered = this;
  shared().process = ::getpid();
}

// Between the last use of this one and here a new one may have taken its place.
Runtime::Impl::~Impl() {
  const std::lock_guard lock(shared().mutex);
  if (shared().registered != this) return;
  shared().registered = nullptr;
  shared().process = 0;
  const Ort::Status ignored(Ort::GetApi().UnregisterAllocator(env, allocator.info));
}

Runtime::Runtime(const std::optional<std::filesystem::path>& library, std::optional<double> run_limit)
    : run_limit_(run_limit) {
  failpoint("runtime.open");
  const auto loaded = load(library);
  // Only the thread that forked is in a child; what the others held stays held. So this comes before any lock.
  if (const pid_t owner = shared().process; owner != 0 && owner != ::getpid())
    throw usage_error("this process was forked while a run of detent went on, and has not the threads of that run",
                      "start processes with multiprocessing's 'spawn' or 'forkserver', or fork when no run goes on");
  const std::lock_guard lock(shared().mutex);
  impl_ = shared().alive.lock();
  if (impl_) return;
  impl_ = std::make_shared<Impl>(loaded.version, loaded.name);
  shared().alive = impl_;
}

const std::string& Runtime::version() const { return impl_->version; }
bool Runtime::has_provider(std::string_view name) const {
  const auto available = Ort::GetAvailableProviders();
  return std::find(available.begin(), available.end(), name) != available.end();
}
std::uint64_t Runtime::peak_activation_bytes() const { return impl_->cache.peak_in_use(); }

}  // namespace detent::exec
