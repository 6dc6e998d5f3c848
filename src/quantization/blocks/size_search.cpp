#include "quantization/blocks/size_search.h"

#include <algorithm>

namespace detent::quantization {
namespace {

// Between `low`, which is too small, and `high`, which is enough.
std::uint64_t with_expected(double wanted, std::uint64_t low, std::uint64_t high,
                            const std::function<double(std::uint64_t)>& expected) {
  constexpr int kSteps = 12;
  for (int i = 0; i < kSteps && high - low > 1; ++i) {
    const auto middle = low + (high - low) / 2;
    (expected(middle) <= wanted ? high : low) = middle;
  }
  return high;
}

}  // namespace

std::optional<std::uint64_t> smallest_size(const SizeSearch& search,
                                           const std::function<double(std::uint64_t)>& expected,
                                           const std::function<double(std::uint64_t)>& measured,
                                           std::vector<SizeTrial>& trials) {
  constexpr std::uint64_t kNear = 100;  // a part of the size
  std::optional<std::uint64_t> best;
  std::uint64_t low = search.smallest == 0 ? 0 : search.smallest - 1, high = search.largest;
  std::uint64_t size = std::clamp(search.first, low + 1, high);
  for (int trial = 0; trial < search.most_trials; ++trial) {
    const double loss = measured(size);
    trials.push_back({size, loss});
    if (loss <= search.most_loss)
      best = high = size;
    else
      low = size;
    const auto step = std::max<std::uint64_t>(1, low / (2 * kNear));
    if (high <= low + 2 * step) break;
    constexpr double kMuchMore = 16;
    const double factor = expected(size);
    const double wanted = loss > 0 ? factor * search.most_loss / loss : kMuchMore * factor;
    size = std::clamp(with_expected(wanted, low, high, expected), low + step, high - step);
  }
  return best;
}

}  // namespace detent::quantization
