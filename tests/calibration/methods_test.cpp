#include <cmath>
#include <set>

#include "calibration/methods.h"
#include "calibration/support.h"

namespace detent::calibration {
namespace {

using namespace test;  // NOLINT

Floats sorted(Floats values) {
  std::sort(values.begin(), values.end());
  return values;
}

// Every method, by its name.
std::vector<std::pair<std::string, std::function<Range(const Summary&)>>> variants() {
  static const std::vector<double> kCandidates{99, 99.9, 99.99};
  const auto layerwise = [](bool two_sided, ErrorMetric metric, const Quantizer& grid) {
    return [=](const Summary& s) { return layerwise_percentile_range(s, kCandidates, two_sided, metric, grid); };
  };
  return {{"minmax", [](const Summary& s) { return minmax_range(s, false); }},
          {"average", [](const Summary& s) { return minmax_range(s, true); }},
          {"percentile", [](const Summary& s) { return percentile_range(s, 99.9, false); }},
          {"two-sided percentile", [](const Summary& s) { return percentile_range(s, 90, true); }},
          {"layerwise", layerwise(false, ErrorMetric::mae, uint8())},
          {"two-sided layerwise", layerwise(true, ErrorMetric::mse, int8())},
          {"mse uint8", [](const Summary& s) { return mse_range(s, uint8()); }},
          {"mse int8", [](const Summary& s) { return mse_range(s, int8()); }},
          {"mse power of two", [](const Summary& s) { return mse_power_of_two_range(s, int8_power_of_two()); }},
          {"entropy", [](const Summary& s) { return entropy_range(s, 2048, 128); }}};
}

TEST(Methods, GiveOrderedFiniteRangesWithinTheExtremes) {
  for (const auto& [kind, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    const float lowest = std::min(summary.extremes.lowest(), 0.0F);
    const float highest = std::max(summary.extremes.highest(), 0.0F);
    for (const auto& [name, find] : variants()) {
      SCOPED_TRACE(name + " of " + kind);
      const Range range = find(summary);
      EXPECT_TRUE(std::isfinite(range.min) && std::isfinite(range.max)) << range.min << " " << range.max;
      EXPECT_LE(range.min, range.max);
      EXPECT_GE(range.min, lowest);
      EXPECT_LE(range.max, highest);
    }
  }
}

TEST(Methods, KeepAConstantWhereItIs) {
  for (const float c : {0.37F, -2.75F, 1e-20F, -3e30F, 6.0F, kLargest}) {
    for (const std::size_t count : {1UL, 1000UL}) {
      const Summary summary = summary_of(Floats(count, c));
      for (const auto& [name, find] : variants()) {
        SCOPED_TRACE(name + " of " + std::to_string(c));
        const Range range = find(summary);
        const bool shrinks = name == "mse power of two";  // by as many halves as lose nothing
        if (!shrinks) {
          EXPECT_NEAR(c > 0 ? range.max : range.min, c, 0.002F * std::abs(c));
        }
        for (const auto& grid : {int8()(range), uint8()(range)})
          EXPECT_LE(mean_error(density_of(summary), grid, Power::one), 0.01 * std::abs(c));
      }
    }
  }
}

TEST(Methods, FindNothingInZeros) {
  for (const Floats& values : {Floats(500, 0.0F), Floats{-0.0F}, Floats{0.0F, -0.0F}}) {
    for (const auto& [name, find] : variants()) {
      const Range range = find(summary_of(values));
      EXPECT_EQ(range.min, 0.0F) << name;
      EXPECT_EQ(range.max, 0.0F) << name;
    }
  }
}

TEST(Methods, StartAtZeroBehindARelu) {
  const Summary summary = summary_of(rectified(30000, 1));
  for (const auto& [name, find] : variants()) {
    EXPECT_EQ(find(summary).min, 0.0F) << name;
    EXPECT_GT(find(summary).max, 0.5F) << name;
  }
}

TEST(MinMax, IsExact) {
  const Floats values = heavy_tailed(1001, 2);
  const Range range = minmax_range(summary_of(values), false);
  EXPECT_EQ(range.min, sorted(values).front());
  EXPECT_EQ(range.max, sorted(values).back());
}

TEST(MinMax, AverageIsTheMeanOverRuns) {
  const Summary summary = summary_of_runs({{-1, 2, 0}, {-4, 1}, {0.5F, 7}, {}});
  const Range range = minmax_range(summary, true);
  EXPECT_EQ(range.min, static_cast<float>((-1 - 4 + 0.5) / 3)) << "a run without values does not count";
  EXPECT_EQ(range.max, static_cast<float>((2 + 1 + 7) / 3.0));
  EXPECT_EQ(minmax_range(summary_of_runs({{kLargest}, {kLargest}, {kLargest}}), true).max, kLargest);
}

TEST(Percentile, AtOneHundredIsTheExtremes) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    for (const bool two_sided : {false, true}) {
      const Range range = percentile_range(summary, 100, two_sided);
      EXPECT_EQ(range.min, summary.extremes.lowest()) << name;
      EXPECT_EQ(range.max, summary.extremes.highest()) << name;
    }
  }
}

TEST(Percentile, IsThatOfNumpy) {
  for (const auto& [name, values] : all_kinds()) {
    if (values.size() < 9) continue;
    Floats magnitudes(values);
    for (auto& v : magnitudes) v = std::abs(v);
    const Floats ascending = sorted(values);
    const Summary summary = summary_of(values);
    // Half a bin: of 1/256 of the octave for the upper 6 octaves of a sign, of 1/64 for 6 more, of 1/16 below.
    const auto near = [&](float found, double expected, double largest) {
      const double share = std::abs(expected) / largest;
      EXPECT_NEAR(found, expected,
                  std::abs(expected) * (share >= 0x1p-5    ? 0x1p-9
                                        : share >= 0x1p-11 ? 0x1p-7
                                                           : 0x1p-5));
    };
    for (const double p : {50.0, 90.0, 99.0, 99.9, 99.99}) {
      SCOPED_TRACE(name + " " + std::to_string(p));
      const double t = percentile(sorted(magnitudes), p);
      const double largest = *std::max_element(magnitudes.begin(), magnitudes.end());
      const Range one = percentile_range(summary, p, false);
      near(one.min, std::max<double>(-t, ascending.front()), largest);
      near(one.max, std::min<double>(t, ascending.back()), largest);
      const Range two = percentile_range(summary, p, true);
      near(two.min, percentile(ascending, (100 - p) / 2), largest);
      near(two.max, percentile(ascending, 100 - (100 - p) / 2), largest);
    }
  }
}

TEST(Percentile, GrowsWithItsNumber) {
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    for (const bool two_sided : {false, true}) {
      Range inner = percentile_range(summary, 0.01, two_sided);
      for (double p = 0.5; p <= 100; p += 0.5) {
        const Range outer = percentile_range(summary, p, two_sided);
        EXPECT_LE(outer.min, inner.min) << name << " " << p;
        EXPECT_GE(outer.max, inner.max) << name << " " << p;
        inner = outer;
      }
    }
  }
}

TEST(Percentile, OfMagnitudesIsSymmetricButForTheExtremes) {
  const Summary wide = summary_of(normal(20000, 3));
  const Range range = percentile_range(wide, 99, false);
  EXPECT_EQ(range.min, -range.max);
  EXPECT_NEAR(range.max, 2.576, 0.08);
  // Values from about -1 up to 6: the percentile of |x| is beyond the smallest.
  Floats values = normal(20000, 4, 2.5F);
  for (auto& v : values) v = std::max(v, -1.0F);
  const Range cut = percentile_range(summary_of(values), 99, false);
  EXPECT_EQ(cut.min, -1.0F);
  EXPECT_NEAR(cut.max, 2.5 + 2.326, 0.1);
  const Range two = percentile_range(wide, 99, true);
  EXPECT_NE(two.min, -two.max) << "each side for itself";
}

TEST(LayerwisePercentile, TakesTheCandidateWithTheLeastError) {
  const std::vector<double> candidates{99.9, 90, 99, 99.99, 100};
  for (const auto& [name, values] : all_kinds()) {
    const Summary summary = summary_of(values);
    const Density density = density_of(summary);
    for (const bool two_sided : {false, true}) {
      for (const auto& grid : {int8(), uint8(), int8_power_of_two()}) {
        for (const ErrorMetric metric : {ErrorMetric::mae, ErrorMetric::mse}) {
          const Power power = metric == ErrorMetric::mae ? Power::one : Power::two;
          Range best;
          double least = std::numeric_limits<double>::infinity();
          for (const double p : candidates) {
            const Range range = percentile_range(summary, p, two_sided);
            const double error = mean_error(density, grid(range), power);
            if (!(error < least)) continue;
            least = error;
            best = range;
          }
          const Range found = layerwise_percentile_range(summary, candidates, two_sided, metric, grid);
          EXPECT_EQ(found.min, best.min) << name;
          EXPECT_EQ(found.max, best.max) << name;
        }
      }
    }
  }
}

TEST(LayerwisePercentile, TheMetricDecides) {
  const Summary summary = summary_of(with_outliers(20000, 5));
  const std::vector<double> candidates{99, 100};
  EXPECT_LT(layerwise_percentile_range(summary, candidates, false, ErrorMetric::mae, uint8()).max, 10);
  EXPECT_GT(layerwise_percentile_range(summary, candidates, false, ErrorMetric::mse, uint8()).max, 1000);
}

TEST(FindRange, AsksForWhatIsMissing) {
  const Summary bare = summary_of_runs({{1.0F, 2.0F}}, ObserverOptions());
  const auto error_of = [&](const Summary& summary, const MethodConfig& method, const QuantConfig& format = {}) {
    try {
      find_range({"conv1_out", summary, method, format, uint8()});
      return std::string("no error");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input);
      return e.what() + ("; " + e.hint());
    }
  };
  for (const Method* method : all_methods()) {
    if (!method->needs_histogram) continue;
    MethodConfig config;
    config.method = method->id;
    const std::string text = error_of(bare, config);
    for (const char* part : {"'conv1_out'", "no histogram", "--no-histogram"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  MethodConfig votes;
  votes.method = CalibrationMethod::mse;
  votes.most_common = true;
  QuantConfig format;
  format.power_of_two_scale = true;
  const Summary no_votes = summary_of_runs({{1.0F, 2.0F}}, {true, false, false, 1});
  EXPECT_NE(error_of(no_votes, votes, format).find("calibrate with --set most-common"), std::string::npos);
  EXPECT_EQ(find_range({"t", bare, MethodConfig(), {}, uint8()}).max, 2.0F) << "minmax needs nothing";
}

TEST(Methods, EachNameHasOneMethod) {
  std::set<CalibrationMethod> ids;
  for (const Method* method : all_methods()) {
    EXPECT_TRUE(ids.insert(method->id).second) << method_name(method->id);
    EXPECT_EQ(&method_of(method->id), method);
  }
  EXPECT_EQ(ids.size(), std::size(kCalibrationMethods));
  EXPECT_EQ(method_name(CalibrationMethod::layerwise_percentile), "layerwise-percentile");
  EXPECT_EQ(method_name(CalibrationMethod::entropy), "entropy");
  EXPECT_THROW(method_of(static_cast<CalibrationMethod>(1000)), Error);
}

// What holds for every method, also for those to come.
TEST(Methods, GiveRangesWithinTheExtremesThatDependOnValuesAlone) {
  const auto values = with_outliers(20000, 6);
  const std::vector<float> first(values.begin(), values.begin() + 7000), rest(values.begin() + 7000, values.end());
  const Summary summary = summary_of_runs({first, rest});
  const Summary reversed = summary_of_runs({rest, first});
  for (const Method* method : all_methods()) {
    MethodConfig config;
    config.method = method->id;
    const Range range = find_range({"t", summary, config, {}, uint8()});
    EXPECT_LT(range.min, range.max) << method_name(method->id);
    EXPECT_GE(range.min, summary.extremes.lowest()) << method_name(method->id);
    EXPECT_LE(range.max, summary.extremes.highest()) << method_name(method->id);
    const Range again = find_range({"t", reversed, config, {}, uint8()});
    EXPECT_EQ(range.min, again.min) << method_name(method->id);
    EXPECT_EQ(range.max, again.max) << method_name(method->id);
  }
}

TEST(FindRange, TakesTheConfiguredMethod) {
  const Summary summary = summary_of_runs({with_outliers(20000, 6), normal(100, 7)});
  const auto range_of = [&](const auto& change) {
    MethodConfig method;
    QuantConfig format;
    change(method, format);
    return find_range({"t", summary, method, format, int8_power_of_two()});
  };
  const auto expect = [&](const Range& expected, const auto& change) {
    const Range found = range_of(change);
    EXPECT_EQ(found.min, expected.min);
    EXPECT_EQ(found.max, expected.max);
  };
  using M = MethodConfig;
  using Q = QuantConfig;
  expect(minmax_range(summary, true), [](M& m, Q&) { m.average = true; });
  expect(percentile_range(summary, 98, true), [](M& m, Q&) { m = {CalibrationMethod::percentile, false, 98, true}; });
  expect(layerwise_percentile_range(summary, std::vector<double>{97, 96}, false, ErrorMetric::mse, int8_power_of_two()),
         [](M& m, Q&) {
           m.method = CalibrationMethod::layerwise_percentile;
           m.candidates = {97, 96};
           m.metric = ErrorMetric::mse;
         });
  expect(mse_range(summary, int8_power_of_two()), [](M& m, Q&) { m.method = CalibrationMethod::mse; });
  expect(mse_power_of_two_range(summary, int8_power_of_two()), [](M& m, Q& q) {
    m.method = CalibrationMethod::mse;
    q.power_of_two_scale = true;
  });
  for (const bool wide : {false, true}) {
    expect(most_common_power_of_two_range(wide ? summary.votes_16_bit : summary.votes_8_bit, wide ? 16 : 8),
           [wide](M& m, Q& q) {
             m.method = CalibrationMethod::mse;
             m.most_common = q.power_of_two_scale = true;
             q.activation_type = wide ? QuantType::uint16 : QuantType::uint8;
           });
  }
  expect(entropy_range(summary, 512, 32), [](M& m, Q&) {
    m.method = CalibrationMethod::entropy;
    m.entropy_bins = 512;
    m.entropy_levels = 32;
  });
}

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

Response tabulate(const std::function<double(double)>& f) {
  std::vector<float> values;
  for (const float x : Response::points()) values.push_back(static_cast<float>(f(x)));
  return Response(std::move(values));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// The mean over the values themselves.
double error_behind(const Floats& values, const Grid& grid, const std::function<double(double)>& f) {
  double sum = 0;
  for (const float x : values) {
    const double rounded = std::clamp(std::nearbyint(x / grid.step) * grid.step, grid.low, grid.high);
    sum += std::pow(f(x) - f(rounded), 2);
  }
  return sum / static_cast<double>(values.size());
}

TEST(Response, IsTheFunctionNearItsPoints) {
  const auto f = tabulate(silu);
  for (const double x : {-100.0, -20.0, -3.3, -0.7, 0.0, 1e-9, 0.3, 5.7, 33.0, 1e6})
    EXPECT_NEAR(f(x), silu(x), 1e-4 * std::max(1.0, std::abs(x))) << x;
  EXPECT_NEAR(f.slope(1e9), 1, 1e-6) << "goes on beyond the last point";
  EXPECT_FALSE(tabulate([](double x) { return std::exp(x); }).is_finite());
}

TEST(Response, OfTheValueItselfChangesNothing) {
  const auto identity = tabulate([](double x) { return x; });
  for (const auto& [name, values] : all_kinds()) {
    if (name == "masked") continue;  // sums of squares of 1e38 leave nothing of the others
    const Density density = density_of(summary_of(values));
    if (density.total == 0) continue;
    const ResponseDensity seen(density, identity);
    for (const double share : {1.0, 0.5, 0.1}) {
      const Range range{static_cast<float>(share * density.min), static_cast<float>(share * density.max)};
      const Grid grid = uint8()(range);
      const double plain = mean_error(density, grid, Power::two);
      EXPECT_NEAR(seen.mean_error(grid), plain, 0.02 * plain) << name << " " << share;
    }
  }
}

TEST(Response, MeasuresTheErrorBehindTheFunction) {
  Floats values = normal(50000, 3);
  for (float& x : values) x *= 6;
  const Density density = density_of(summary_of(values));
  const ResponseDensity seen(density, tabulate(silu));
  for (const Range range : {Range{-25, 25}, Range{-6, 25}, Range{-3, 20}, Range{-1, 12}}) {
    const Grid grid = uint8()(range);
    const double real = error_behind(values, grid, silu);
    EXPECT_NEAR(seen.mean_error(grid), real, 0.1 * real) << range.min << " to " << range.max;
  }
}

TEST(Response, RangesLeaveOutWhatReadersDoNotSee) {
  Floats values = normal(50000, 4);
  for (float& x : values) x *= 10;
  const Summary summary = summary_of(values);
  const auto f = tabulate(silu);
  const Range plain = mse_range(summary, uint8());
  const Range seen = mse_range(summary, uint8(), &f);
  EXPECT_LT(plain.min, -20);
  EXPECT_GT(seen.min, -7);
  EXPECT_GT(seen.max, 25);
  EXPECT_LT(error_behind(values, uint8()(seen), silu), 0.5 * error_behind(values, uint8()(plain), silu));
}

}  // namespace
}  // namespace detent::calibration
