#include "cuda/device.h"
#include "base/text.h"
#include "cuda/gpu/check.h"
#include "cuda/stream.h"

namespace detent::cuda {

DeviceFacts facts_of(int number) {
  constexpr int kOldest = 8;  // compute capability: bfloat16 and TF32 products begin there
  make_current(number);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "tell its properties");
  if (properties.major < kOldest) {
    throw device_error(fmt::format("cuda:{} ({}) has compute capability {}.{}, and {}.0 is needed", number,
                                   properties.name, properties.major, properties.minor, kOldest),
                       "choose another --device");
  }
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "tell its memory");
  DeviceFacts facts;
  facts.name = properties.name;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.free_bytes = free;
  return facts;
}

void make_current(int number) { check(cudaSetDevice(number), "be used"); }

DeviceMemory::DeviceMemory(MemoryBudget& budget, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  const std::size_t counted = counted_bytes(bytes);
  budget.take(counted, what);
  const cudaError_t status = cudaMalloc(&address_, bytes);
  if (status != cudaSuccess) {
    address_ = nullptr;
    budget.give_back(counted);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw resource_error(
          fmt::format("the GPU has no {} left for {}", format_size(bytes), what),
          "end other programs on it, or lower --set device-memory-budget to get this error before the work begins");
    }
    check(status, "allocate memory");
  }
  budget_ = &budget;
  bytes_ = counted;
}

DeviceMemory::~DeviceMemory() {
  if (address_ == nullptr) return;
  cudaFree(address_);  // waits for what still uses it
  budget_->give_back(bytes_);
}

HostMemory::HostMemory(std::size_t bytes, bool pinned) : memory_(bytes), pinned_(pinned && bytes > 0) {
  if (!pinned_) return;
  const cudaError_t status = cudaHostRegister(memory_.bytes().data(), memory_.size(), cudaHostRegisterDefault);
  if (status == cudaErrorMemoryAllocation || status == cudaErrorNotSupported) {
    cudaGetLastError();
    throw resource_error(fmt::format("{} of memory cannot be pinned for copies to the GPU", format_size(bytes)),
                         "see the limit of locked memory (ulimit -l), or give --set no-pin-memory");
  }
  check(status, "pin memory");
}

HostMemory::~HostMemory() {
  if (pinned_) cudaHostUnregister(memory_.bytes().data());
}

Stream::Stream() { check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "make a stream"); }

Stream::~Stream() {
  cudaStreamSynchronize(handle_);
  cudaStreamDestroy(handle_);
}

void Stream::wait() const { check(cudaStreamSynchronize(handle_), "do its work"); }

void Stream::upload(void* to, const void* from, std::size_t bytes) const {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, handle_), "copy from the host");
}

void Stream::download(void* to, const void* from, std::size_t bytes) const {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle_), "copy to the host");
}

void Stream::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle_), "copy");
}

void Stream::clear(void* at, std::size_t bytes) const {
  if (bytes > 0) check(cudaMemsetAsync(at, 0, bytes, handle_), "clear memory");
}

Event::Event(bool timed) {
  const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&handle_, flags), "make an event");
}

Event::~Event() { cudaEventDestroy(handle_); }

void Event::record(const Stream& stream) { check(cudaEventRecord(handle_, stream.handle()), "record an event"); }

void Event::hold(const Stream& stream) const {
  check(cudaStreamWaitEvent(stream.handle(), handle_, 0), "wait for an event");
}

void Event::wait() const { check(cudaEventSynchronize(handle_), "do its work"); }

double Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, earlier.handle_, handle_), "read its clock");
  return milliseconds;
}

/// After each launch; defined here, since nvcc compiles the kernels without the rest of the project.
void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) check(status, fmt::format("launch {}", kernel).c_str());
}

struct Graph::Recorded {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;

  Recorded() = default;
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  ~Recorded() {
    if (ready != nullptr) cudaGraphExecDestroy(ready);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

Graph::Graph(const Stream& stream, const std::function<void()>& work) : recorded_(std::make_unique<Recorded>()) {
  // Of this thread only: other threads may allocate for their own devices meanwhile.
  check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "begin a graph");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream.handle(), &recorded_->graph);  // leaves the stream usable
    throw;
  }
  check(cudaStreamEndCapture(stream.handle(), &recorded_->graph), "record a graph");
  check(cudaGraphInstantiate(&recorded_->ready, recorded_->graph, 0), "make a graph ready");
}

Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

void Graph::launch(const Stream& stream) const {
  check(cudaGraphLaunch(recorded_->ready, stream.handle()), "launch a graph");
}

}  // namespace detent::cuda
