#include "quantization/assignment.h"

#include "calibration/support.h"
#include "support.h"

namespace detent::quantization {
namespace {

using calibration::Range;
using calibration::Statistics;
using testing::Builder;
using testing::config;
namespace values = calibration::test;

// x -> Conv -> c -> Conv -> r -> Softmax -> s. The weights need no range, and that of s follows from its operator.
Builder chain() {
  Builder b;
  b.input("x").constant("w", {4, 3, 1, 1}).constant("v", {4, 4, 1, 1});
  b.node("Conv", {"x", "w"}, {"c"}).node("Conv", {"c", "v"}, {"r"}).node("Softmax", {"r"}, {"s"}).output("s");
  return b;
}

Statistics statistics(const calibration::ObserverOptions& options = {true, true, false, 1}) {
  Statistics s;
  s.tensors["x"] = values::summary_of_runs({values::normal(3000, 1), values::normal(3000, 2)}, options);
  s.tensors["c"] = values::summary_of_runs({values::with_outliers(5000, 3), values::rectified(100, 4)}, options);
  s.tensors["r"] = values::summary_of_runs({values::rectified(5000, 5)}, options);
  return s;
}

RangeOptions with(CalibrationMethod method, std::vector<TensorOverride> overrides = {}, std::size_t threads = 1) {
  RangeOptions options;
  options.method.method = method;
  options.overrides = std::move(overrides);
  options.threads = threads;
  return options;
}
TensorOverride method_of(const std::string& tensor, CalibrationMethod method) { return {tensor, method, {}}; }
TensorOverride range_of(const std::string& tensor, float min, float max) { return {tensor, {}, {{min, max}}}; }

calibration::Ranges find(const RangeOptions& options, const QuantConfig& format = {},
                         const Statistics& s = statistics()) {
  calibration::Ranges ranges;
  for (const auto& [value, found] : find_ranges(chain().place(format), s, format, options)) ranges[value] = found.range;
  return ranges;
}

void expect_range(const calibration::Ranges& ranges, const std::string& value, const Range& expected) {
  ASSERT_TRUE(ranges.contains(value)) << value;
  EXPECT_EQ(ranges.at(value).min, expected.min) << value;
  EXPECT_EQ(ranges.at(value).max, expected.max) << value;
}

void expect_error(ErrorKind kind, const std::vector<std::string>& says, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "no error: " << says.front();
  } catch (const Error& e) {
    const std::string text = e.what() + ("; " + e.hint());
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << text;
    for (const auto& part : says) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(FindRanges, OfActivationsByTheMethodAndOfSoftmaxByItself) {
  const Statistics s = statistics();
  const auto ranges = find(with(CalibrationMethod::minmax));
  EXPECT_EQ(ranges.size(), 4U);
  for (const char* value : {"x", "c", "r"}) expect_range(ranges, value, minmax_range(s.tensors.at(value), false));
  expect_range(ranges, "s", {0, 1});
  const auto percentile = find(with(CalibrationMethod::percentile));
  expect_range(percentile, "c", calibration::percentile_range(s.tensors.at("c"), 99.999, false));
  expect_range(percentile, "s", {0, 1});
}

TEST(FindRanges, SayWhereTheyComeFrom) {
  const auto options =
      with(CalibrationMethod::minmax, {method_of("c", CalibrationMethod::percentile), range_of("x", 0, 1)});
  const auto ranges = find_ranges(chain().place(), statistics(), {}, options);
  EXPECT_EQ(ranges.at("x").origin, "given");
  EXPECT_EQ(ranges.at("c").origin, "percentile");
  EXPECT_EQ(ranges.at("r").origin, "minmax");
  EXPECT_EQ(ranges.at("s").origin, "operator");
}

TEST(FindRanges, ErrorsAreThoseOfTheFormat) {
  const Statistics s = statistics();
  const auto check = [&](QuantType type, bool symmetric, const calibration::Quantizer& grid) {
    const auto format = config([&](auto& c) {
      c.activation_type = type;
      c.activation_symmetric = symmetric;
    });
    expect_range(find(with(CalibrationMethod::mse), format), "c", mse_range(s.tensors.at("c"), grid));
    const auto halved = config([&](auto& c) {
      c = format;
      c.power_of_two_scale = true;
    });
    if (!symmetric) return;
    const auto found = find(with(CalibrationMethod::mse), halved).at("x");
    const auto exponent = calibration::best_power_of_two(s.tensors.at("x"), is_16_bit(type) ? 16 : 8);
    EXPECT_EQ(compute_params(found.min, found.max, {type, true, false, true}).scale, std::exp2(exponent));
  };
  check(QuantType::int8, true, values::int8());
  check(QuantType::uint8, false, values::uint8());
  check(QuantType::int16, true, values::quantizer(-32768, 32767));
  check(QuantType::uint16, false, values::quantizer(0, 65535));
}

TEST(FindRanges, OverridesOfOneTensor) {
  const Statistics s = statistics();
  const auto ranges = find(with(CalibrationMethod::minmax, {method_of("c", CalibrationMethod::percentile),
                                                            range_of("r", -0.5F, 3), range_of("s", 0, 0.25F)}));
  expect_range(ranges, "x", minmax_range(s.tensors.at("x"), false));
  expect_range(ranges, "c", percentile_range(s.tensors.at("c"), 99.999, false));
  expect_range(ranges, "r", {-0.5F, 3});
  expect_range(ranges, "s", {0, 0.25F});
}

TEST(FindRanges, OverridesByPattern) {
  const Statistics s = statistics();
  const auto ranges =
      find(with(CalibrationMethod::minmax, {method_of("^[cr]$", CalibrationMethod::entropy), range_of("^x?$", -1, 1)}));
  for (const char* value : {"c", "r"}) expect_range(ranges, value, entropy_range(s.tensors.at(value), 2048, 128));
  expect_range(ranges, "x", {-1, 1});
  // A pattern covers the whole name, and what comes later wins.
  const auto later = find(with(CalibrationMethod::minmax, {range_of("^.$", -1, 1), range_of("c", -2, 2)}));
  expect_range(later, "c", {-2, 2});
  expect_range(later, "r", {-1, 1});
}

TEST(FindRanges, OverridesThatMatchNothing) {
  for (const char* name : {"w", "y", "C", "^conv.*", "^c.+"}) {
    expect_error(ErrorKind::usage, {std::string("'") + name + "' is not an activation", "--json"},
                 [&] { find(with(CalibrationMethod::minmax, {range_of(name, 0, 1)})); });
  }
  expect_error(ErrorKind::usage, {"^("}, [] { find(with(CalibrationMethod::minmax, {range_of("^(", 0, 1)})); });
  expect_error(ErrorKind::usage, {"--set tensor-method", "'s'", "--set tensor-range"},
               [] { find(with(CalibrationMethod::minmax, {method_of("s", CalibrationMethod::mse)})); });
}

TEST(FindRanges, ARangeMayBeOneValue) {
  expect_range(find(with(CalibrationMethod::minmax, {range_of("x", 2, 2)})), "x", {2, 2});
}

TEST(FindRanges, StatisticsThatLackATensor) {
  Statistics s = statistics();
  s.tensors.erase("r");
  expect_error(ErrorKind::bad_input, {"'r'", "same --preset"}, [&] { find(with(CalibrationMethod::minmax), {}, s); });
  const auto ranges = find(with(CalibrationMethod::minmax, {range_of("r", 0, 9)}), {}, s);
  expect_range(ranges, "r", {0, 9});
  s.tensors["r"] = {};  // observed, but it never had a value
  EXPECT_FALSE(find(with(CalibrationMethod::entropy), {}, s).contains("r"));
}

TEST(FindRanges, StatisticsThatLackWhatTheMethodNeeds) {
  const Statistics bare = statistics({});
  EXPECT_EQ(find(with(CalibrationMethod::minmax), {}, bare).size(), 4U);
  // The first tensor that fails is named, whatever the threads.
  for (const std::size_t threads : {1UL, 2UL, 8UL}) {
    for (int round = 0; round < 20; ++round) {
      expect_error(ErrorKind::bad_input, {"'x'", "no histogram"},
                   [&] { find(with(CalibrationMethod::mse, {}, threads), {}, bare); });
    }
  }
  expect_error(ErrorKind::bad_input, {"'r'", "no histogram"},
               [&] { find(with(CalibrationMethod::minmax, {method_of("r", CalibrationMethod::mse)}), {}, bare); });

  const auto symmetric = config([](auto& c) { c.power_of_two_scale = c.activation_symmetric = true; });
  RangeOptions votes = with(CalibrationMethod::mse);
  votes.method.most_common = true;
  EXPECT_EQ(find(votes, symmetric).size(), 4U);
  expect_error(ErrorKind::bad_input, {"'x'", "--set most-common"}, [&] {
    find(votes, symmetric, statistics({true, false, false, 1}));
  });
}

TEST(FindRanges, ThreadsDoNotMatter) {
  for (const auto method : {CalibrationMethod::layerwise_percentile, CalibrationMethod::mse}) {
    const auto expected = find(with(method));
    for (const std::size_t threads : {2UL, 3UL, 16UL}) {
      const auto found = find(with(method, {}, threads));
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [value, range] : expected) expect_range(found, value, range);
    }
  }
}

TEST(Needs, FollowTheMethods) {
  EXPECT_FALSE(needs_histograms(with(CalibrationMethod::minmax)));
  EXPECT_FALSE(needs_histograms(with(CalibrationMethod::minmax, {range_of("x", 0, 1)})));
  EXPECT_TRUE(needs_histograms(with(CalibrationMethod::minmax, {method_of("x", CalibrationMethod::entropy)})));
  for (const auto method : {CalibrationMethod::percentile, CalibrationMethod::layerwise_percentile,
                            CalibrationMethod::mse, CalibrationMethod::entropy})
    EXPECT_TRUE(needs_histograms(with(method)));
  RangeOptions options = with(CalibrationMethod::mse);
  const auto powers = config([](auto& c) { c.power_of_two_scale = true; });
  EXPECT_FALSE(needs_votes(powers, options));
  options.method.most_common = true;
  EXPECT_TRUE(needs_votes(powers, options));
}

TEST(FindRanges, OfALogSpanAtLeast4OnTheHtp) {
  Builder b;
  b.input("x").node("Log", {"x"}, {"l"}).node("Mul", {"l", "x"}, {"y"}).output("y");
  Statistics s;
  for (const char* value : {"x", "l", "y"})
    s.tensors[value] = values::summary_of_runs({{-1.5F, 0.25F}}, {true, true, false, 1});
  for (const auto& [target, low] : {std::pair{"qnn", -3.75F}, {"qnn:a16", -3.75F}, {"tensorrt", -1.5F}}) {
    const auto format = config([&, name = target](auto& c) {
      c.target = name;
      c.op_types = {"Log", "Mul"};
      if (c.target == "qnn:a16") c.activation_type = QuantType::uint16;
    });
    calibration::Ranges ranges;
    const auto found = find_ranges(b.place(format), s, format, with(CalibrationMethod::minmax));
    for (const auto& [value, of] : found) ranges[value] = of.range;
    expect_range(ranges, "l", {low, 0.25F});
    expect_range(ranges, "y", {-1.5F, 0.25F});
    // The user's word counts.
    const auto given = find_ranges(b.place(format), s, format, with(CalibrationMethod::minmax, {range_of("l", -1, 1)}));
    EXPECT_EQ(given.at("l").range.min, -1);
    EXPECT_EQ(given.at("l").range.max, 1);
  }
}

}  // namespace
}  // namespace detent::quantization
