#include "calibration/methods.h"
#include "calibration/support.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

double error_of(const Summary& summary, const Range& range, const Quantizer& grid) {
  return mean_error(density_of(summary), grid(range), Power::two);
}

// The least error over ranges within the extremes: one bound for both sides in fine steps, or each bound for itself in
// coarser ones.
double least_error(const Summary& summary, const Quantizer& grid, bool symmetric) {
  const Density density = density_of(summary);
  const double low = std::min(density.min, 0.0);
  const double high = std::max(density.max, 0.0);
  const int per_octave = symmetric || low == 0 || high == 0 ? 64 : 6;
  const auto bounds = [&](double bound) {
    std::vector<double> all;
    for (int i = 0; i <= 7 * per_octave; ++i) all.push_back(bound * std::exp2(-static_cast<double>(i) / per_octave));
    return bound == 0 || (symmetric && bound == low) ? std::vector<double>{bound} : all;
  };
  double least = std::numeric_limits<double>::infinity();
  for (const double l : bounds(low)) {
    for (const double h : bounds(high)) {
      const Range range{static_cast<float>(symmetric ? std::max(low, -h) : l), static_cast<float>(h)};
      least = std::min(least, mean_error(density, grid(range), Power::two));
    }
  }
  return least;
}

TEST(Mse, IsNeverWorseThanTheExtremes) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    for (const auto& grid : {int8(), uint8(), quantizer(-32768, 32767), quantizer(0, 65535), quantizer(-8, 7)}) {
      EXPECT_LE(error_of(summary, mse_range(summary, grid), grid),
                error_of(summary, minmax_range(summary, false), grid))
          << name;
    }
  }
}

TEST(Mse, IsTheBestOnAFineNet) {
  for (const auto& [name, values] : all_kinds()) {
    if (values.size() < 1000 || name == "masked" || name == "negative") continue;
    const Summary summary = summary_of(values);
    for (const auto& [format, grid] :
         {std::pair("int8", int8()), {"uint8", uint8()}, {"int4", quantizer(-8, 7)}, {"uint4", quantizer(0, 15)}}) {
      const double found = error_of(summary, mse_range(summary, grid), grid);
      EXPECT_LE(found, 1.005 * least_error(summary, grid, format[0] == 'i')) << name << " " << format;
    }
  }
}

TEST(Mse, CutsWhatIsRareAndFar) {
  // One value in 20000 at 50: to keep it would cost more than to lose it, with 4 bits.
  Floats values = normal(20000, 1);
  values[7] = 50;
  const Summary summary = summary_of(values);
  EXPECT_LT(mse_range(summary, quantizer(-8, 7)).max, 6);
  EXPECT_EQ(mse_range(summary_of(Floats{-1, 50, 50, 50}), quantizer(-8, 7)).max, 50.0F);
}

TEST(Mse, KeepsAMaskThatIsHalfOfTheValues) {
  for (const auto& grid : {int8(), uint8()}) {
    const Range range = mse_range(summary_of(masked(5000, 2)), grid);
    EXPECT_LT(range.min, -0.99F * kLargest);
  }
}

TEST(PowerOfTwo, TheBestExponentOfAll) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    const Density density = density_of(summary);
    const Range extremes = minmax_range(summary, false);
    for (const auto& grid : {int8_power_of_two(), quantizer(0, 255, true), quantizer(-32768, 32767, true)}) {
      double least = std::numeric_limits<double>::infinity();
      Grid best;
      for (int times = 0; times < 60; ++times) {
        const Grid candidate = grid({std::ldexp(extremes.min, -times), std::ldexp(extremes.max, -times)});
        const double error = mean_error(density, candidate, Power::two);
        if (!(error < least)) continue;
        least = error;
        best = candidate;
      }
      const Grid found = grid(mse_power_of_two_range(summary, grid));
      EXPECT_EQ(found.step, best.step) << name;
      EXPECT_EQ(found.low, best.low) << name;
      EXPECT_EQ(std::exp2(std::round(std::log2(found.step))), found.step) << name;
    }
  }
}

TEST(PowerOfTwo, OfOneRunIsThatOfItsRange) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    const double largest = std::max(-summary.extremes.lowest(), summary.extremes.highest());
    if (largest == 0) {
      EXPECT_EQ(best_power_of_two(summary, 8), 0);
      continue;
    }
    for (const int bits : {8, 16}) {
      const Quantizer grid = quantizer(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, true);
      const double step = std::exp2(best_power_of_two(summary, bits));
      if (step < std::numeric_limits<float>::min()) continue;
      EXPECT_EQ(step, grid(mse_power_of_two_range(summary, grid)).step) << name << " " << bits;
    }
  }
}

TEST(PowerOfTwo, AnEdgeIsNotPassed) {
  // 127 steps of 1 hold 127, and 127 steps of 2 are needed for the next float.
  for (const int exponent : {-100, -7, 0, 5, 100}) {
    const float edge = std::ldexp(127.0F, exponent);
    EXPECT_EQ(best_power_of_two(summary_of({edge}), 8), exponent);
    const Quantizer grid = int8_power_of_two();
    EXPECT_EQ(grid({-edge, edge}).step, std::exp2(exponent));
    EXPECT_EQ(grid({-edge, std::nextafter(edge, kLargest)}).step, std::exp2(exponent + 1));
  }
}

TEST(MostCommon, CountsRuns) {
  const Summary summary = summary_of_runs({normal(5000, 3), normal(5000, 4), normal(5000, 5, 0, 64), {}});
  ASSERT_EQ(summary.votes_8_bit.size(), 2U);
  const auto [small, large] = std::pair(*summary.votes_8_bit.begin(), *summary.votes_8_bit.rbegin());
  EXPECT_EQ(small, (std::pair<const int, std::uint64_t>(best_power_of_two(summary_of(normal(5000, 3)), 8), 2)));
  EXPECT_EQ(large, (std::pair<const int, std::uint64_t>(small.first + 6, 1)));
  EXPECT_EQ(summary.votes_16_bit.begin()->second, 2U);
}

TEST(MostCommon, RunsOfZerosDoNotVote) {
  const Floats zeros(100, 0.0F);
  const Summary summary = summary_of_runs({zeros, normal(5000, 3, 0, 0.001F), zeros, {-0.0F}});
  EXPECT_EQ(summary.runs, 4U);
  ASSERT_EQ(summary.votes_8_bit.size(), 1U);
  EXPECT_EQ(summary.votes_8_bit.begin()->second, 1U);
  EXPECT_LT(summary.votes_8_bit.begin()->first, -12);
  MethodConfig method;
  method.method = CalibrationMethod::mse;
  method.most_common = true;
  QuantConfig format;
  format.power_of_two_scale = true;
  const Range range = find_range({"t", summary_of(zeros), method, format, int8_power_of_two()});
  EXPECT_EQ(int8_power_of_two()(range).step, 1) << "as for zeros with any method";
}

TEST(MostCommon, LeadsToTheScaleWithTheMostVotes) {
  const auto scale_of = [](const Votes& votes, int bits, bool symmetric_integers) {
    const int span = 1 << (bits - 1);
    const Range range = most_common_power_of_two_range(votes, bits);
    EXPECT_EQ(range.min, -range.max);
    // Unsigned integers with the zero point in the middle have one step less above it.
    const double step = static_cast<double>(range.max) * 2 / (symmetric_integers ? 2 * span - 2 : 2 * span - 1);
    return std::ceil(std::log2(step));
  };
  for (const int bits : {8, 16}) {
    for (const bool symmetric_integers : {true, false}) {
      for (const int exponent : {-20, -3, 0, 7, 100}) {
        EXPECT_EQ(scale_of({{exponent, 1}}, bits, symmetric_integers), exponent);
        EXPECT_EQ(scale_of({{exponent - 2, 3}, {exponent, 4}, {exponent + 9, 1}}, bits, symmetric_integers), exponent);
        EXPECT_EQ(scale_of({{exponent - 2, 4}, {exponent, 4}, {exponent + 9, 1}}, bits, symmetric_integers), exponent);
      }
    }
  }
}

TEST(MostCommon, HoldsTheLargestFloat) {
  for (const int bits : {8, 16}) {
    const Range range = most_common_power_of_two_range({{best_power_of_two(summary_of({kLargest}), bits), 1}}, bits);
    EXPECT_EQ(range.max, kLargest);
    EXPECT_EQ(range.min, -kLargest);
  }
}

}  // namespace
}  // namespace detent::calibration
