// Private to exec/: what a loaded ONNX Runtime consists of.
#pragma once

#include <string>

#include "exec/block_cache.h"
#include "exec/ort.h"
#include "exec/session.h"

namespace detent::exec {

struct Runtime::Impl {
  explicit Impl(std::string runtime_version);
  ~Impl();

  std::string version;
  BlockCache cache;

  // The runtime's view of the cache; registered with the environment so that all lean sessions use it.
  struct Allocator : OrtAllocator {
    BlockCache* cache = nullptr;
    Ort::MemoryInfo info{nullptr};
  } allocator{};
  Ort::Env env{nullptr};
};

}  // namespace detent::exec
