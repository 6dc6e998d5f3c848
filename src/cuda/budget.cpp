#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "cuda/memory.h"
#include "profile/device_activity.h"

namespace detent::cuda {

void MemoryBudget::require(std::uint64_t bytes, const std::string& what) const {
  if (bytes <= limit_ - used_) return;
  const auto [need, left] = format_sizes(bytes, limit_ - used_);
  throw resource_error(
      fmt::format("{} needs {} on cuda:{}, but only {} of its budget are left", what, need, device_, left),
      "raise --set device-memory-budget, or give --device cpu");
}

void MemoryBudget::take(std::uint64_t bytes, const std::string& what) {
  require(bytes, what);
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (log_ != nullptr) log_->set_memory(device_, used_);
}

void MemoryBudget::give_back(std::uint64_t bytes) noexcept {
  used_ -= bytes;
  if (log_ != nullptr) log_->set_memory(device_, used_);
}

}  // namespace detent::cuda
