#include "cuda/memory.h"

#include "base/bytes.h"
#include "cuda/gpu/check.h"

namespace detent::cuda {

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

}  // namespace detent::cuda
