#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "calibration/support.h"
#include "graph/index.h"
#include "onnx/write.h"
#include "quantization/assignment.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/integer_operators.h"
#include "quantization/placement/value_kinds.h"
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

TEST(Masks, ConstantsGoNoLowerThanTheScoresTheyAreAddedTo) {
  Builder b;
  b.input("x").constant("mask", {1, 3}, {0, -10000, -10000}).constant("table", {1, 3}, {1, -10000, 2});
  b.node("Add", {"x", "mask"}, {"s"}).node("Softmax", {"s"}, {"p"}).node("Mul", {"p", "table"}, {"y"}).output("y");
  const auto options = testing::config([](auto& c) { c.target = "qnn"; });
  auto placement = b.place(options);
  auto scans = scan_weights(b.model, placement, false);
  narrow_masks({{"mask", {-17, 0}}, {"s", {-13, 4}}}, placement, b.model, scans);
  EXPECT_EQ(onnx::to_doubles(testing::tensor(b.model, "mask")), (std::vector<double>{0, -17, -17}));
  EXPECT_EQ(scans.at("mask").extremes.at(0).lowest(), -17);
  EXPECT_EQ(scans.at("mask").extremes.at(0).highest(), 0);
  // What has no such range stays.
  EXPECT_EQ(onnx::to_doubles(testing::tensor(b.model, "table")), (std::vector<double>{1, -10000, 2}));
  EXPECT_EQ(scans.at("table").extremes.at(0).lowest(), -10000);
}

enum : std::size_t { kFirst, kSecond, kSum, kPool, kThird };

// x -> first -> a; x -> second -> b; a + b -> s -> pool -> p -> third -> y.
Builder two_branches() {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1});
  b.node("Conv", {"x", "w"}, {"a"}).node("Conv", {"x", "w"}, {"b"}).node("Add", {"a", "b"}, {"s"});
  b.node("MaxPool", {"s"}, {"p"}).node("Conv", {"p", "w"}, {"y"}).output("y");
  return b;
}

// Of the graph's values that change with the input.
std::set<std::string> wide(std::initializer_list<std::size_t> nodes, bool formats_given = true) {
  const auto b = two_branches();
  std::vector<bool> flags(b.model.graph.nodes.size());
  for (const auto n : nodes) flags[n] = true;
  auto values = wide_values(b.model, graph::Index(b.model), flags, formats_given, b.place());
  values.erase("w");
  return values;
}

using Values = std::set<std::string>;

TEST(WideValues, OperatorsCarrySixteenBitsBetweenWideProducts) {
  EXPECT_EQ(wide({kFirst, kSecond, kThird}), (Values{"x", "a", "b", "s", "p", "y"}));
  EXPECT_EQ(wide({kThird}), (Values{"p", "s", "y"})) << "the branches keep the bits that their products make";
}

TEST(WideValues, ProductsOfEightBitsKeepWhatTheyReadAndMake) {
  EXPECT_EQ(wide({kFirst, kSecond}), (Values{"x", "a", "b"})) << "the pool has one scale for what it reads and makes";
  EXPECT_EQ(wide({kFirst, kThird}), (Values{"x", "a", "s", "p", "y"}));
}

TEST(WideValues, FallbacksConcernWhatIsBesideThem) {
  EXPECT_EQ(wide({kThird}, false), (Values{"p", "y"}));
  EXPECT_EQ(wide({kFirst}, false), (Values{"x", "a"}));
  EXPECT_TRUE(wide({}).empty());
  const auto b = two_branches();
  EXPECT_TRUE(wide_values(b.model, graph::Index(b.model), {}, true, b.place()).empty());
}

// Pairs of 16 bits around operators whose activations differ in width.

// x -> first -> Relu a -> second -> y, of which `wide` have 16 bits.
Emitted widened_chain(const std::vector<std::string>& wide, const QuantConfig& options) {
  Builder b;
  b.input("x").constant("w1", {4, 4, 1, 1}).constant("w2", {4, 4, 1, 1});
  b.node("Conv", {"x", "w1"}, {"c"}).node("Relu", {"c"}, {"a"}).node("Conv", {"a", "w2"}, {"y"}).output("y");
  auto placement = b.place(options);
  for (auto& mark : placement.marks) {
    for (const auto& value : wide) mark.wide = mark.wide || mark.value == value;
  }
  calibration::Ranges ranges;
  for (const auto& value : placement.to_observe()) ranges[value] = {-1.0F, 3.0F};
  auto proposals = testing::proposals(ranges);
  proposals.wide = proposals.ranges;
  proposals.constants = scan_weights(b.model, placement, false);
  const auto assignment = assign(b.model, std::move(placement), proposals, options);
  return emit_qdq({b.model}, assignment);
}

QuantConfig for_htp() {
  return config([](auto& c) { c.target = "qnn"; });
}

// The type of the integers that a product's value stands between.
onnx::DataType width(const onnx::Model& model, const onnx::Node& pair) {
  const graph::Index index(model);
  return model.graph.initializers[static_cast<std::size_t>(index.initializer(pair.inputs()[2]))].type;
}

const onnx::Node& maker(const onnx::Model& model, const std::string& value) {
  return model.graph.nodes[static_cast<std::size_t>(graph::Index(model).producer(value))];
}

const onnx::Node& reader(const onnx::Model& model, const std::string& value) {
  return model.graph.nodes[static_cast<std::size_t>(graph::Index(model).consumers(value).front())];
}

const onnx::Tensor& tensor(const onnx::Model& model, const std::string& name) {
  return model.graph.initializers[static_cast<std::size_t>(graph::Index(model).initializer(name))];
}

TEST(Widths, NothingIsAddedWhereAllAgree) {
  for (const auto& wide : {std::vector<std::string>{}, {"x", "a", "y"}}) {
    const auto emitted = widened_chain(wide, for_htp());
    EXPECT_EQ(emitted.model.graph.nodes.size(), 11U);
  }
}

TEST(Widths, BothProductsAroundA16BitValueReadAndMake16Bits) {
  const auto emitted = widened_chain({"a"}, for_htp());
  const auto& model = emitted.model;
  for (const std::size_t n : {0U, 2U}) {
    const auto& conv = model.graph.nodes.at(emitted.provenance.nodes[n].value());
    ASSERT_EQ(conv.op_type(), "Conv");
    EXPECT_EQ(width(model, maker(model, conv.inputs()[0])), onnx::DataType::uint16);
    const auto* next = &reader(model, conv.outputs()[0]);
    if (next->op_type() == "Relu") next = &reader(model, next->outputs()[0]);
    EXPECT_EQ(width(model, *next), onnx::DataType::uint16);
  }
  // The pair behind x: 256 steps in each of those of 8 bits.
  const auto& wide = maker(model, model.graph.nodes.at(emitted.provenance.nodes[0].value()).inputs()[0]);
  const auto& narrow = emitted.provenance.values.at("x");
  EXPECT_EQ(onnx::to_doubles(tensor(model, wide.inputs()[1]))[0] * 256,
            onnx::to_doubles(tensor(model, narrow.scale))[0]);
  EXPECT_EQ(onnx::to_int64s(tensor(model, wide.inputs()[2]))[0],
            256 * onnx::to_int64s(tensor(model, narrow.zero_point))[0]);
  // The results of the second are made 8 bits from 16.
  const auto& last = maker(model, emitted.provenance.values.at("y").stored);
  EXPECT_EQ(width(model, last), onnx::DataType::uint8);
  EXPECT_EQ(maker(model, last.inputs()[0]).op_type(), "DequantizeLinear");
}

TEST(Widths, SignedIntegers) {
  auto options = for_htp();
  options.activation_type = QuantType::int8;
  const auto emitted = widened_chain({"a"}, options);
  const auto& conv = emitted.model.graph.nodes.at(emitted.provenance.nodes[0].value());
  EXPECT_EQ(width(emitted.model, maker(emitted.model, conv.inputs()[0])), onnx::DataType::int16);
}

TEST(Widths, AHardSigmoidBetweenBothWorksWith8Bits) {
  Builder b;
  b.input("x").node("HardSigmoid", {"x"}, {"y"}).output("y");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) mark.wide = mark.value == "x";
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"y", {0.0F, 1.0F}}});
  proposals.wide = proposals.ranges;
  const auto emitted = emit_qdq({b.model}, assign(b.model, std::move(placement), proposals, options));
  const auto& node = emitted.model.graph.nodes.at(emitted.provenance.nodes[0].value());
  const auto& narrow = maker(emitted.model, node.inputs()[0]);
  EXPECT_EQ(width(emitted.model, narrow), onnx::DataType::uint8);
  EXPECT_EQ(width(emitted.model, reader(emitted.model, node.outputs()[0])), onnx::DataType::uint8);
  EXPECT_NEAR(onnx::to_doubles(tensor(emitted.model, narrow.inputs()[1]))[0], 4.0 / 255, 1e-6);
  EXPECT_EQ(onnx::to_int64s(tensor(emitted.model, narrow.inputs()[2]))[0], 64);
}

TEST(Widths, AConstantBesideA16BitValueHasItsNumbersIn16Bits) {
  Builder b;
  b.input("x").constant("half", {1}, {-0.5F}).constant("w", {4, 4, 1, 1});
  b.node("Conv", {"x", "w"}, {"c"}).node("Mul", {"c", "half"}, {"y"}).output("y");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) mark.wide = mark.value == "y";
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"c", {-1.0F, 3.0F}}, {"y", {-1.5F, 0.5F}}});
  proposals.wide = proposals.ranges;
  proposals.constants = scan_weights(b.model, placement, false);
  const auto emitted = emit_qdq({b.model}, assign(b.model, std::move(placement), proposals, options));
  const auto& model = emitted.model;
  const auto& product = model.graph.nodes.at(emitted.provenance.nodes[1].value());
  ASSERT_EQ(product.op_type(), "Mul");
  const auto& pair = maker(model, product.inputs()[1]);
  EXPECT_EQ(width(model, pair), onnx::DataType::uint16);
  const auto step = onnx::to_doubles(tensor(model, pair.inputs()[1]))[0];
  const auto zero = onnx::to_int64s(tensor(model, pair.inputs()[2]))[0];
  EXPECT_NEAR(static_cast<double>(onnx::to_int64s(tensor(model, pair.inputs()[0]))[0] - zero) * step, -0.5, 1e-6);
  // The weight stays, and nothing is left of the 8 bits.
  const auto& conv = model.graph.nodes.at(emitted.provenance.nodes[0].value());
  EXPECT_EQ(width(model, maker(model, conv.inputs()[1])), onnx::DataType::int8);
  const graph::Index index(model);
  for (const auto& node : model.graph.nodes) {
    for (const auto& made : node.outputs())
      EXPECT_TRUE(index.is_output(made) || !index.consumers(made).empty()) << node.label();
  }
  for (const auto& constant : model.graph.initializers)
    EXPECT_FALSE(index.consumers(constant.name).empty()) << constant.name;
}

TEST(Widths, OtherTargetsKeepTheirPairs) {
  EXPECT_EQ(widened_chain({"a"}, config([](auto& c) { c.target = "tensorrt"; })).model.graph.nodes.size(), 11U);
}

// x times y, of which `wide` have 16 bits.
Emitted product_of_activations(const std::vector<std::string>& wide, calibration::Range second) {
  Builder b;
  b.input("x").input("y").node("MatMul", {"x", "y"}, {"z"}).output("z");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) {
    for (const auto& value : wide) mark.wide = mark.wide || mark.value == value;
  }
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"y", second}, {"z", {-2.0F, 2.0F}}});
  proposals.wide = proposals.ranges;
  return emit_qdq({b.model}, assign(b.model, std::move(placement), proposals, options));
}

TEST(Widths, TheSecondOfTwoActivationsHasASignAndTheZeroPoint0) {
  for (const auto second : {calibration::Range{-1.0F, 3.0F}, {0.0F, 3.0F}, {-3.0F, 0.0F}, {-2.0F, 2.0F}}) {
    for (const auto& wide : {std::vector<std::string>{"x", "y", "z"}, {"x", "z"}, {"z"}}) {
      const auto emitted = product_of_activations(wide, second);
      const auto& model = emitted.model;
      const auto& product = model.graph.nodes.at(emitted.provenance.nodes[0].value());
      EXPECT_EQ(width(model, maker(model, product.inputs()[0])), onnx::DataType::uint16);
      const auto& pair = maker(model, product.inputs()[1]);
      EXPECT_EQ(width(model, pair), onnx::DataType::int16);
      EXPECT_EQ(onnx::to_int64s(tensor(model, pair.inputs()[2]))[0], 0);
      // It reaches as far as the range does, and is no coarser than that asks for.
      const double step = onnx::to_doubles(tensor(model, pair.inputs()[1]))[0];
      const double far = std::max(-second.min, second.max);
      EXPECT_GE(step * 32768, far * 0.9999);
      const bool is_wide = wide.size() == 3;
      EXPECT_LE(step, (is_wide ? far / 32767 : (second.max - second.min) / 255 / 128) * 1.0001);
    }
  }
  const auto narrow = product_of_activations({}, {-1.0F, 3.0F});
  EXPECT_EQ(narrow.model.graph.nodes.size(), 7U);  // with 8 bits all is as it was
}

// x -> LayerNormalization -> n -> Reshape, at times -> MatMul -> y.
Emitted normalized_product(std::int64_t rows, bool reshapes, const std::string& target) {
  Builder b;
  b.input("x").constant("s", {8}).constant("b", {8}).constant("w", {8, 3}).integers("shape", {-1, 8});
  b.node("LayerNormalization", {"x", "s", "b"}, {"n"});
  if (reshapes) b.node("Reshape", {"n", "shape"}, {"r"});
  b.node("MatMul", {reshapes ? "r" : "n", "w"}, {"y"}).output("y");
  b.types["n"].shape = std::vector<onnx::Dim>{{1, ""}, {rows, ""}, {8, ""}};
  const auto options = config([&](auto& c) {
    c.target = target;
    if (target == "qnn:a16") c.activation_type = QuantType::uint16;
  });
  auto placement = b.place(options);
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"n", {-2.0F, 2.0F}}, {"y", {-9.0F, 7.0F}}});
  proposals.constants = scan_weights(b.model, placement, false);
  return emit_qdq({b.model, b.types}, assign(b.model, std::move(placement), proposals, options));
}

TEST(Widths, ALayerNormalizationBetween8BitsWorksWith16OnTheHtp) {
  for (const std::string target : {"qnn", "amd-npu:xint8"}) {
    const auto emitted = normalized_product(5, false, target);
    const auto& model = emitted.model;
    const auto& norm = model.graph.nodes.at(emitted.provenance.nodes[0].value());
    ASSERT_EQ(norm.op_type(), "LayerNormalization");
    const auto inside = width(model, maker(model, norm.inputs()[0]));
    EXPECT_EQ(inside, width(model, reader(model, norm.outputs()[0])));
    EXPECT_EQ(inside == onnx::DataType::uint16, target == "qnn");
    // What is outside of it has 8 bits.
    const auto& product = model.graph.nodes.at(emitted.provenance.nodes[1].value());
    EXPECT_NE(width(model, maker(model, product.inputs()[0])), onnx::DataType::uint16);
  }
}

TEST(Widths, AMulBy1StandsBetween16NormalizedRowsAndTheirProduct) {
  for (const bool reshapes : {false, true}) {
    for (const std::int64_t rows : {15, 16}) {
      const auto emitted = normalized_product(rows, reshapes, "qnn:a16");
      const auto& model = emitted.model;
      const auto& product = model.graph.nodes.at(emitted.provenance.nodes.back().value());
      ASSERT_EQ(product.op_type(), "MatMul");
      const auto& pair = maker(model, product.inputs()[0]);
      const auto& before = maker(model, maker(model, pair.inputs()[0]).inputs()[0]);
      EXPECT_EQ(before.op_type() == "Mul", rows == 16) << rows << reshapes;
      if (rows != 16) continue;
      const auto& factor = maker(model, before.inputs()[1]);
      EXPECT_EQ(onnx::to_int64s(tensor(model, factor.inputs()[0]))[0], 65535);
      EXPECT_EQ(onnx::to_doubles(tensor(model, factor.inputs()[1]))[0], static_cast<double>(1.0F / 65535));
      EXPECT_EQ(onnx::to_int64s(tensor(model, factor.inputs()[2]))[0], 0);
      const auto& given = maker(model, before.inputs()[0]);
      EXPECT_EQ(given.inputs()[1], pair.inputs()[1]);
      EXPECT_EQ(given.inputs()[2], pair.inputs()[2]);
    }
  }
}

TEST(Widths, AMulReadsATanhOf16BitsWithASignOnTheHtp) {
  for (const auto& [target, type] : {std::pair{"qnn:a16", onnx::DataType::int16}, {"qnn", onnx::DataType::uint8}}) {
    Builder b;
    b.input("x").node("Tanh", {"x"}, {"t"}).node("Sigmoid", {"x"}, {"s"});
    b.node("Mul", {"t", "s"}, {"m"}).node("Add", {"t", "m"}, {"y"}).output("y");
    const auto options = config([&, name = target](auto& c) {
      c.target = name;
      if (c.target == "qnn:a16") c.activation_type = QuantType::uint16;
    });
    const calibration::Range unit{-1.0F, 1.0F};
    auto proposals = testing::proposals({{"x", {-2.0F, 2.0F}}, {"t", unit}, {"s", unit}, {"m", unit}, {"y", unit}});
    const auto emitted = emit_qdq({b.model}, assign(b.model, b.place(options), proposals, options));
    const auto& model = emitted.model;
    const auto& product = model.graph.nodes.at(emitted.provenance.nodes[2].value());
    ASSERT_EQ(product.op_type(), "Mul");
    const auto& pair = maker(model, product.inputs()[0]);
    EXPECT_EQ(width(model, pair), type);
    const auto zero = onnx::to_int64s(tensor(model, pair.inputs()[2]))[0];
    EXPECT_EQ(zero == 0, type == onnx::DataType::int16);
    // What else is read stays as it is, and so does the Tanh for others.
    const auto others = type == onnx::DataType::int16 ? onnx::DataType::uint16 : type;
    EXPECT_EQ(width(model, maker(model, product.inputs()[1])), others);
    const auto& sum = model.graph.nodes.at(emitted.provenance.nodes[3].value());
    EXPECT_EQ(width(model, maker(model, sum.inputs()[0])), others);
  }
}

using onnx::Node;

void add_constant(onnx::Model& model, const std::string& name, std::vector<std::int64_t> dims) {
  std::vector<float> values(1);
  for (const auto d : dims) values.resize(values.size() * static_cast<std::size_t>(d));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.0F + static_cast<float>(i);
  model.graph.initializers.push_back(
      onnx::make_tensor(name, onnx::DataType::float32, std::move(dims), std::span<const float>(values)));
}

// x [n, 8] through a product, its bias and a gate to another product.
onnx::Model gated() {
  onnx::Model model;
  model.set_opset("", 17);
  model.graph.inputs.push_back(onnx::make_value_info("x", onnx::DataType::float32, std::nullopt));
  model.graph.outputs.push_back(onnx::make_value_info("y", onnx::DataType::float32, std::nullopt));
  add_constant(model, "up", {8, 32});
  add_constant(model, "bias", {32});
  add_constant(model, "down", {32, 8});
  model.graph.nodes = {Node("MatMul", "up", {"x", "up"}, {"a"}), Node("Add", "add", {"bias", "a"}, {"b"}),
                       Node("Sigmoid", "share", {"x"}, {"s"}), Node("Mul", "gate", {"b", "s"}, {"g"}),
                       Node("MatMul", "down", {"g", "down"}, {"y"})};
  return model;
}

Placement placed() {
  Placement placement;
  for (const bool down : {false, true}) {
    BlockTensor tensor;
    tensor.initializer = down ? 2 : 0;
    tensor.rows = down ? 32 : 8;
    tensor.columns = down ? 8 : 32;
    tensor.products = {down ? std::size_t{4} : std::size_t{0}};
    placement.tensors.push_back(tensor);
  }
  return placement;
}

TEST(InputFolds, ThroughAGateIntoAProductAndItsBias) {
  auto model = gated();
  auto placement = placed();
  const auto folds = input_folds(model, placement);
  ASSERT_EQ(folds.size(), 1U);
  EXPECT_EQ(folds[0].value, "g");
  EXPECT_EQ(folds[0].tensors, std::vector<std::size_t>{1});
  EXPECT_EQ(folds[0].constants, std::vector<std::size_t>{1});
  EXPECT_EQ(folds[0].product, std::size_t{0});

  std::vector<float> factors(32);
  for (std::size_t i = 0; i < 32; ++i) factors[i] = 0.5F + static_cast<float>(i);
  apply_fold(folds[0], factors, model, placement);
  std::vector<float> columns(2 * 32), others(2 * 8);
  read_columns(model.graph.initializers[2], placement.tensors[1], 3, 5, columns);
  EXPECT_FLOAT_EQ(columns[0], (1 + 3) * 0.5F);               // [0, 3]
  EXPECT_FLOAT_EQ(columns[32 + 7], (1 + 7 * 8 + 4) * 7.5F);  // [7, 4]
  read_columns(model.graph.initializers[0], placement.tensors[0], 3, 5, others);
  EXPECT_FLOAT_EQ(others[1], (1 + 32 + 3) / 3.5F);  // [1, 3]
  EXPECT_NEAR(onnx::to_doubles(model.graph.initializers[1])[4], 5 / 4.5, 1e-6);
}

TEST(InputFolds, NotWhereSomethingElseReadsWhatIsOnTheWay) {
  for (const std::string value : {"a", "b", "g"}) {
    auto model = gated();
    model.graph.outputs.push_back(onnx::make_value_info(value, onnx::DataType::float32, std::nullopt));
    EXPECT_TRUE(input_folds(model, placed()).empty()) << value;
  }
  for (const std::string value : {"a", "b", "g", "bias"}) {
    auto model = gated();
    model.graph.nodes.emplace_back("Relu", "other", std::vector<std::string>{value}, std::vector<std::string>{"z"});
    EXPECT_TRUE(input_folds(model, placed()).empty()) << value;
  }
}

TEST(InputFolds, NotWhereWeightsDoNotTakePart) {
  auto placement = placed();
  placement.tensors[1].stays = true;
  EXPECT_TRUE(input_folds(gated(), placement).empty());
  placement = placed();
  placement.tensors[0].tables = {4};
  EXPECT_TRUE(input_folds(gated(), placement).empty());
  placement = placed();
  placement.tensors.erase(placement.tensors.begin());  // the first product stays in float
  EXPECT_TRUE(input_folds(gated(), placement).empty());
}

}  // namespace
}  // namespace detent::quantization
