#include "exec/runtime.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <limits>
#include <new>
#include <string_view>
#include <vector>

#include "base/process.h"
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
  // ONNX Runtime 1.31 crashes where its schemas find no memory: this throws before it does.
  constexpr std::size_t kSchemas = std::size_t{24} << 20;
  std::vector<std::byte>().reserve(kSchemas);
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
    throw usage_error("this process was forked while a run of detent went on, and lacks the threads of that run",
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

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Below this malloc does well; above it a freed block should be able to return to the system.
constexpr std::size_t kLarge = std::size_t{64} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;

// nullptr: there is no memory.
std::byte* map_block(std::size_t size) {
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  // First touches of 4 KiB pages cost more than the work on them; a refusal does no harm.
  if (size >= kHuge) ::madvise(block, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

}  // namespace

BlockCache::~BlockCache() {
  for (const auto& [begin, block] : blocks_) ::munmap(begin, block.size);
}

// A block in use.
BlockCache::Blocks::iterator BlockCache::add(std::byte* begin, std::size_t size) {
  BySize place{{size, begin}};
  return blocks_.emplace(begin, Block{size, place.extract(place.begin())}).first;
}

// Makes one of two neighbours.
void BlockCache::take_over(Blocks::iterator block, Blocks::iterator next) noexcept {
  block->second.size += next->second.size;
  blocks_.erase(next);
}

void BlockCache::keep_unused(Blocks::iterator block) noexcept {
  unused_bytes_ += block->second.size;
  const auto is_unused = [&](Blocks::iterator neighbour) { return neighbour->second.place.empty(); };
  const auto place_of = [&](Blocks::iterator b) { return unused_.find({b->second.size, b->first}); };
  BySize::node_type place = std::move(block->second.place);
  if (const auto next = std::next(block);
      next != blocks_.end() && is_unused(next) && block->first + block->second.size == next->first) {
    unused_.erase(place_of(next));
    take_over(block, next);
  }
  if (block != blocks_.begin()) {
    const auto before = std::prev(block);
    if (is_unused(before) && before->first + before->second.size == block->first) {
      unused_.erase(place_of(before));
      take_over(before, block);
      block = before;
    }
  }
  place.value() = {block->second.size, block->first};
  unused_.insert(std::move(place));
}

BlockCache::Blocks::iterator BlockCache::take_unused(std::size_t size) {
  const auto found = unused_.lower_bound({size, nullptr});
  if (found == unused_.end()) return blocks_.end();
  const auto block = blocks_.find(found->second);
  const std::size_t rest = block->second.size - size;
  const auto second = rest > 0 ? add(block->first + size, rest) : blocks_.end();
  unused_bytes_ -= block->second.size;
  block->second.place = unused_.extract(found);
  block->second.size = size;
  if (rest > 0) keep_unused(second);
  return block;
}

void BlockCache::give_back(BySize::iterator place) noexcept {
  const auto [size, begin] = *place;
  ::munmap(begin, size);
  unused_bytes_ -= size;
  blocks_.erase(begin);
  unused_.erase(place);
}

// Small pieces go first: they are the least likely to serve again.
void BlockCache::make_room(std::size_t size) noexcept {
  const std::size_t allowed = std::max(peak_bytes_, live_bytes_ + size);
  while (!unused_.empty() && live_bytes_ + unused_bytes_ + size > allowed) give_back(unused_.begin());
}

void BlockCache::give_all_back() noexcept {
  while (!unused_.empty()) give_back(unused_.begin());
}

BlockCache::Blocks::iterator BlockCache::map_new(std::size_t size) {
  make_room(size);
  std::byte* begin = map_block(size);
  if (begin == nullptr && !unused_.empty()) {  // where memory is short, none lies idle
    give_all_back();
    begin = map_block(size);
  }
  if (begin == nullptr) throw std::bad_alloc();
  try {
    return add(begin, size);
  } catch (...) {
    ::munmap(begin, size);
    throw;
  }
}

void* BlockCache::allocate(std::size_t size) {
  if (size < kLarge) {
    void* block =
        allocate_aligned(kAlignment, (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  if (size > std::numeric_limits<std::size_t>::max() - kPage) throw std::bad_alloc();
  const std::size_t bytes = (size + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  auto block = take_unused(bytes);
  if (block == blocks_.end()) block = map_new(bytes);
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return block->first;
}

void BlockCache::free(void* block) noexcept {
  if (block == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<std::byte*>(block));
    if (found != blocks_.end()) {
      live_bytes_ -= found->second.size;
      keep_unused(found);
      return;
    }
  }
  free_aligned(block);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  give_all_back();
}

std::size_t BlockCache::in_use() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::size_t BlockCache::peak_in_use() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

namespace {

constexpr const char* kCpu = "CPUExecutionProvider";
constexpr const char* kHint =
    "install onnxruntime-gpu (pip install onnxruntime-gpu) and set DETENT_ONNXRUNTIME to the path of its "
    "libonnxruntime.so; or give --device cpu, to detent calibrate too, whose statistics quantize --statistics reads";

struct ReleaseOptions {
  void operator()(OrtCUDAProviderOptionsV2* options) const { Ort::GetApi().ReleaseCUDAProviderOptions(options); }
};
using CudaOptions = std::unique_ptr<OrtCUDAProviderOptionsV2, ReleaseOptions>;

CudaOptions cuda_options(const shim::Device& device) {
  const auto& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* made = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&made));
  CudaOptions options(made);
  const std::string ordinal = std::to_string(device.ordinal);
  const std::string limit = std::to_string(device.memory_limit);
  std::vector<std::pair<const char*, const char*>> settings{
      {"device_id", ordinal.c_str()},
      {"use_tf32", device.tf32 ? "1" : "0"},
      // The default tries algorithms out and takes the fastest: another one each time, with other rounding.
      {"cudnn_conv_algo_search", "HEURISTIC"},
      // The default doubles what it takes each time.
      {"arena_extend_strategy", "kSameAsRequested"}};
  if (device.memory_limit > 0) settings.emplace_back("gpu_mem_limit", limit.c_str());
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : settings) {
    keys.push_back(key);
    values.push_back(value);
  }
  Ort::ThrowOnError(api.UpdateCUDAProviderOptions(made, keys.data(), values.data(), keys.size()));
  if (device.stream != nullptr)
    Ort::ThrowOnError(api.UpdateCUDAProviderOptionsWithValue(made, "user_compute_stream", device.stream));
  return options;
}

}  // namespace

void append_provider(Ort::SessionOptions& options, const shim::Device& device, const std::string& library) {
  if (device.provider == kCpu) return;  // it stands behind all others anyway
  const auto available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), device.provider) == available.end()) {
    throw device_error(fmt::format("this ONNX Runtime ('{}') was built without {}", library, device.provider), kHint);
  }
  try {
    options.AppendExecutionProvider_CUDA_V2(*cuda_options(device));
  } catch (const Ort::Exception& e) {
    throw device_error(
        fmt::format("ONNX Runtime ('{}') cannot load {}: {}", library, device.provider, one_line(e.what())),
        "install the CUDA and cuDNN libraries that this onnxruntime-gpu was built for");
  }
  // Sums by atomic additions come in another order each time.
  options.SetDeterministicCompute(true);
}

void append_provider(Ort::SessionOptions& options, const std::string& name, const std::string& library) {
  if (name == kCpu) return;
  const auto available = Ort::GetAvailableProviders();
  if (std::find(available.begin(), available.end(), name) == available.end())
    throw device_error(fmt::format("this ONNX Runtime ('{}') has no {}", library, name),
                       fmt::format("it has {}; --runtime gives another one", fmt::join(available, ", ")));
  try {
    if (name == "CUDAExecutionProvider") {
      options.AppendExecutionProvider_CUDA(OrtCUDAProviderOptions());
    } else if (name == "TensorrtExecutionProvider") {
      options.AppendExecutionProvider_TensorRT(OrtTensorRTProviderOptions());
    } else {
      const auto short_name = name.substr(0, name.rfind("ExecutionProvider"));
      options.AppendExecutionProvider(short_name == "Xnnpack" ? "XNNPACK" : short_name);
    }
  } catch (const Ort::Exception& e) {
    throw device_error(fmt::format("ONNX Runtime ('{}') cannot load {}: {}", library, name, one_line(e.what())),
                       "install the libraries that the provider needs, or give another --provider");
  }
}

bool is_device_failure(const std::string& text) {
  constexpr std::array<std::string_view, 4> kSigns{"CUDA failure", "CUDNN failure", "CUBLAS failure", "CUDA error"};
  return std::any_of(kSigns.begin(), kSigns.end(),
                     [&](std::string_view sign) { return text.find(sign) != std::string::npos; });
}

}  // namespace detent::exec
