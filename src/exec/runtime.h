// Private to exec/: a loaded ONNX Runtime, the memory that it allocates, and the execution providers that it has.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "exec/ort.h"
#include "exec/session.h"
#include "shim/cuda_driver.h"

namespace detent::exec {

// Memory for activations: freed blocks are kept for reuse (best fit, split and joined again), but never more in all
// than the largest amount that was in use at one time. So the peak is that of the live tensors, and a repeated run
// touches few new pages.

class BlockCache {
 public:
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache();

  /// 64-byte aligned; throws std::bad_alloc. Thread-safe, as is free().
  void* allocate(std::size_t size);
  void free(void* block) noexcept;

  /// Gives all unused blocks back to the system.
  void trim() noexcept;

  std::size_t in_use() const;
  std::size_t peak_in_use() const;

 private:
  using BySize = std::set<std::pair<std::size_t, std::byte*>>;
  struct Block {
    std::size_t size;
    BySize::node_type place;  // in unused_; held here while the block is in use, so that freeing it takes no memory
  };
  using Blocks = std::map<std::byte*, Block>;

  Blocks::iterator add(std::byte* begin, std::size_t size);
  Blocks::iterator take_unused(std::size_t size);
  Blocks::iterator map_new(std::size_t size);
  void keep_unused(Blocks::iterator block) noexcept;
  void take_over(Blocks::iterator block, Blocks::iterator next) noexcept;
  void give_back(BySize::iterator place) noexcept;
  void make_room(std::size_t size) noexcept;
  void give_all_back() noexcept;

  mutable std::mutex mutex_;
  Blocks blocks_;  // all, by address, so that neighbours are found
  BySize unused_;  // to find the best fit
  std::size_t live_bytes_ = 0;
  std::size_t unused_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

// Private to exec/: what a loaded ONNX Runtime consists of.

struct Runtime::Impl {
  Impl(std::string runtime_version, std::string runtime_library);
  ~Impl();

  std::string version;
  std::string library;  // its path, for messages
  BlockCache cache;

  // The runtime's view of the cache; registered with the environment so that all lean sessions use it.
  struct Allocator : OrtAllocator {
    BlockCache* cache = nullptr;
    Ort::MemoryInfo info{nullptr};
  } allocator{};
  Ort::Env env{nullptr};

  // A process that has served a GuardedSession and may serve the next; null: none.
  std::mutex idle_guard_lock;
  std::shared_ptr<void> idle_guard;
};

// Private to exec/: which execution provider of ONNX Runtime a session runs on.

/// Puts the device's provider before the CPU's. Throws device when the runtime was built without it or cannot load it;
/// `library` names the runtime in the message.
void append_provider(Ort::SessionOptions& options, const shim::Device& device, const std::string& library);

/// The same of a provider by its name, with its defaults.
void append_provider(Ort::SessionOptions& options, const std::string& name, const std::string& library);

/// Whether an error of the runtime is one of the device, and not of the model or its inputs.
bool is_device_failure(const std::string& text);

}  // namespace detent::exec
