#include "finetune/block_descent.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/block_factor.h"

namespace detent::finetune {
namespace {

using quantization::BlockWeight;

// Up to kLanes columns: (Ŵ − W) A by weight, and the integers that it is of.
class Group {
 public:
  // `kept`: the columns, of which zeros keep their integers; null: none do.
  Group(const Gram& gram, const Damping& damping, BlockWeight& weight, std::size_t first, std::size_t count,
        const float* kept)
      : gram_(gram),
        damping_(damping),
        weight_(weight),
        first_(first),
        count_(count),
        kept_(kept),
        residuals_(gram.rows) {}

  // `product` and `difference` begin at the group's first column.
  void fill(const float* difference, const float* product) {
    for (std::size_t k = 0; k < gram_.rows; ++k) {
      for (std::size_t l = 0; l < count_; ++l) {
        const std::size_t at = l * gram_.rows + k;
        residuals_[k].at[l] = damping_.keep * product[at] + damping_.more[k] * difference[at];
      }
    }
  }

  /// One sweep; whether any integer changed.
  bool sweep() {
    bool changed = false;
    for (std::size_t k = 0; k < gram_.rows; ++k) {
      Lanes change{};
      if (!find_changes(k, change)) continue;
      changed = true;
      for (std::size_t l = 0; l < kLanes; ++l) {
        residuals_[k].at[l] += change.at[l] * damping_.more[k];
        change.at[l] *= damping_.keep;
      }
      add_outer(change, gram_.values.data() + k * gram_.rows, gram_.rows, residuals_.data());
    }
    return changed;
  }

 private:
  // By how much the stored values of weight k change. A change has to be worth more than the rounding errors of float
  // sums, or ties would flip for ever.
  bool find_changes(std::size_t k, Lanes& change) {
    constexpr float kHalf = 0.5001F;
    const auto blocks = static_cast<std::size_t>(weight_.blocks());
    const std::size_t block = k / static_cast<std::size_t>(weight_.format.block_of(weight_.rows));
    bool any = false;
    for (std::size_t l = 0; l < count_; ++l) {
      if (kept_ != nullptr && kept_[(first_ + l) * gram_.rows + k] == 0) continue;
      const float scale = weight_.scales[(first_ + l) * blocks + block];
      const float steps = -residuals_[k].at[l] / (damping_.diagonal[k] * scale);
      if (!(std::fabs(steps) > kHalf) || !std::isfinite(steps)) continue;
      std::uint8_t& integer = weight_.integers[(first_ + l) * gram_.rows + k];
      const auto now = static_cast<float>(integer), most = static_cast<float>(weight_.format.largest());
      const float made = std::clamp(now + std::nearbyint(steps), 0.0F, most);
      integer = static_cast<std::uint8_t>(made);
      change.at[l] = scale * (made - now);
      any = any || made != now;
    }
    return any;
  }

  const Gram& gram_;
  const Damping& damping_;
  BlockWeight& weight_;
  std::size_t first_, count_;
  const float* kept_;
  std::vector<Lanes> residuals_;
};

}  // namespace

void descend(const Gram& gram, const Damping& damping, std::span<const float> columns, BlockWeight& weight,
             std::size_t sweeps, bool keep_zeros, const Kernels& kernels, std::size_t threads) {
  const auto rows = static_cast<std::size_t>(weight.rows), all = static_cast<std::size_t>(weight.columns);
  if (gram.rows != rows || gram.values.size() != rows * rows || columns.size() != rows * all) {
    throw internal_error("a Gram matrix and columns do not belong together");
  }
  parallel_for((all + kColumnsTogether - 1) / kColumnsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kColumnsTogether, some = std::min(kColumnsTogether, all - first);
    std::vector<float> difference(kColumnsTogether * rows), product(difference.size());
    stored_difference(columns, weight, first, some, difference.data());
    kernels.gemm(gemm_of(kColumnsTogether, rows, rows, false), difference.data(), rows, gram.values.data(), rows,
                 product.data(), rows);
    for (std::size_t at = 0; at < some; at += kLanes) {
      Group group(gram, damping, weight, first + at, std::min(kLanes, some - at),
                  keep_zeros ? columns.data() : nullptr);
      group.fill(difference.data() + at * rows, product.data() + at * rows);
      for (std::size_t sweep = 0; sweep < sweeps && group.sweep(); ++sweep) {
      }
    }
  });
}

}  // namespace detent::finetune
