// Private to exec/: what a loaded ONNX Runtime consists of.
#pragma once

#include <string>

#include "exec/block_cache.h"
#include "exec/ort.h"
#include "exec/session.h"

namespace detent::exec {

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
};

}  // namespace detent::exec
