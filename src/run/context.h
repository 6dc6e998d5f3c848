// What every pass over the samples of one run shares.
#pragma once

#include <filesystem>
#include <memory>
#include <stop_token>

#include "detent/progress.h"
#include "detent/resources.h"
#include "exec/session.h"

namespace detent::run {

/// What a pass may use, and who hears of it. A value: copies are cheap and can be changed, for another directory or
/// another number of threads.
struct Context {
  const exec::Runtime& runtime;  // must outlive the context
  Resources resources;
  std::filesystem::path directory;  // for working files
  int threads = 0;                  // of the runtime; 0: one per core
  Progress progress = {};
  std::stop_token stop = {};
  /// Where the model's nodes run; null: on the CPU.
  std::shared_ptr<const shim::Device> place = {};
};

}  // namespace detent::run
