#include "calibration/methods.h"
#include "calibration/support.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

// |x| over equal bins: each interval of the density gives each bin what it covers of it.
std::vector<double> folded(const Density& density, std::size_t bins, double largest) {
  std::vector<double> counts(bins);
  const double width = largest / static_cast<double>(bins);
  for (const auto& i : density.intervals) {
    const double low = std::min(std::abs(i.low), std::abs(i.high));
    const double high = std::max(std::abs(i.low), std::abs(i.high));
    for (std::size_t b = 0; b < bins; ++b) {
      const double from = static_cast<double>(b) * width;
      const double to = b + 1 == bins ? 2 * largest : from + width;
      if (low == high) {
        if (low >= from && low < to) counts[b] += i.count;
      } else {
        counts[b] += i.count * std::max(std::min(high, to) - std::max(low, from), 0.0) / (high - low);
      }
    }
  }
  counts[0] = counts[1];
  return counts;
}

// As methods.h defines it, step by step.
double divergence(const std::vector<double>& counts, std::size_t end, std::size_t levels) {
  std::vector<double> p(counts.begin(), counts.begin() + end);
  for (std::size_t b = end; b < counts.size(); ++b) p.back() += counts[b];
  std::vector<double> q(end);
  for (std::size_t j = 0; j < levels; ++j) {
    const std::size_t from = j * end / levels;
    const std::size_t to = (j + 1) * end / levels;
    double sum = 0;
    int used = 0;
    for (std::size_t b = from; b < to; ++b) {
      sum += counts[b];
      used += p[b] > 0 ? 1 : 0;
    }
    for (std::size_t b = from; b < to; ++b) q[b] = p[b] > 0 ? sum / used : 0;
  }
  double p_sum = 0, q_sum = 0, kl = 0;
  for (std::size_t b = 0; b < end; ++b) {
    p_sum += p[b];
    q_sum += q[b];
  }
  for (std::size_t b = 0; b < end; ++b) {
    if (p[b] <= 0) continue;
    if (q[b] <= 0) return std::numeric_limits<double>::infinity();
    kl += p[b] / p_sum * std::log((p[b] / p_sum) / (q[b] / q_sum));
  }
  return kl;
}

struct Searched {
  double threshold = 0;
  double least = 0;
  std::function<double(double)> at;  // the divergence at a threshold
};

Searched brute_force(const Summary& summary, std::size_t bins, std::size_t levels) {
  const Density density = density_of(summary);
  const double largest = std::max(-density.min, density.max);
  const auto counts = folded(density, bins, largest);
  Searched s;
  s.least = std::numeric_limits<double>::infinity();
  s.threshold = largest;
  const std::size_t stride = std::max<std::size_t>(levels / 16, 1);
  for (std::size_t i = bins; i >= levels && i <= bins; i -= stride) {
    const double kl = divergence(counts, i, levels);
    if (kl >= s.least) continue;
    s.least = kl;
    s.threshold = largest * static_cast<double>(i) / static_cast<double>(bins);
  }
  s.at = [=](double t) {
    return divergence(counts, static_cast<std::size_t>(std::lround(t / largest * static_cast<double>(bins))), levels);
  };
  return s;
}

double threshold_of(const Range& range) { return std::max(-range.min, range.max); }

TEST(Entropy, TakesTheThresholdWithTheLeastDivergence) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    if (values.size() < 9 || !(threshold_of(minmax_range(summary, false)) > 0)) continue;
    for (const auto& [bins, levels] : {std::pair<std::size_t, std::size_t>(2048, 128), {512, 64}, {301, 20}, {64, 2}}) {
      const Searched expected = brute_force(summary, bins, levels);
      const double found = threshold_of(entropy_range(summary, bins, levels));
      SCOPED_TRACE(name + " " + std::to_string(bins));
      if (values.size() < 4 * bins) {  // they leave most bins empty
        EXPECT_EQ(found, threshold_of(minmax_range(summary, false)));
        continue;
      }
      EXPECT_NEAR(expected.at(found), expected.least, 1e-9 + 1e-9 * std::abs(expected.least));
      // The widest of equals; the sums are rounded differently, so only clear minima can be told apart.
      if (expected.least > 1e-6) {
        EXPECT_NEAR(found, expected.threshold, 1e-6 * expected.threshold);
      }
    }
  }
}

TEST(Entropy, CutsAThinTailAndKeepsAUniformTensor) {
  const Floats tailed = heavy_tailed(200000, 1);
  const float largest =
      std::max(-*std::min_element(tailed.begin(), tailed.end()), *std::max_element(tailed.begin(), tailed.end()));
  const double t = threshold_of(entropy_range(summary_of(tailed), 2048, 128));
  EXPECT_GT(t, 4);
  EXPECT_LT(t, 0.5 * largest);
  const Floats uniform = draw(std::uniform_real_distribution<float>(-1, 1), 200000, 2);
  EXPECT_GT(threshold_of(entropy_range(summary_of(uniform), 2048, 128)), 0.98);
}

TEST(Entropy, IsSymmetricButForTheExtremes) {
  const Range both = entropy_range(summary_of(heavy_tailed(50000, 3)), 2048, 128);
  EXPECT_EQ(both.min, -both.max);
  Floats skewed = heavy_tailed(50000, 4);
  for (auto& v : skewed) v = std::max(v, -0.25F);
  const Range cut = entropy_range(summary_of(skewed), 2048, 128);
  EXPECT_EQ(cut.min, -0.25F);
  EXPECT_GT(cut.max, 1.0F);
}

TEST(Entropy, ZerosDoNotDrownTheRest) {
  Floats values = normal(20000, 5);
  const double without = threshold_of(entropy_range(summary_of(values), 2048, 128));
  values.resize(400000, 0.0F);
  EXPECT_NEAR(threshold_of(entropy_range(summary_of(values), 2048, 128)), without, 0.02 * without);
}

TEST(Entropy, HasNothingToSearchWithAsManyLevelsAsBins) {
  const Summary summary = summary_of(heavy_tailed(5000, 6));
  const Range extremes = minmax_range(summary, false);
  const Range range = entropy_range(summary, 256, 256);
  EXPECT_EQ(threshold_of(range), threshold_of(extremes));
}

}  // namespace
}  // namespace detent::calibration
