#include "calibration/methods.h"

#include <set>

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

}  // namespace
}  // namespace detent::calibration
