#include "quantization/assignment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "detent/error.h"
#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;
using testing::config;

Assignment compute(const Builder& b, const calibration::Ranges& ranges, const QuantConfig& options = {}) {
  auto placement = b.place(options);
  auto proposals = testing::proposals(ranges);
  proposals.constants = scan_weights(b.model, placement, false);
  return assign(b.model, std::move(placement), proposals, options);
}

// Conv of three slices whose weights are ±1e-6, ±1e-3 and ±2, read behind a tiny input.
Builder with_bias(const std::vector<float>& bias) {
  Builder b;
  b.input("x").constant("w", {3, 2, 1, 1}, {1e-6F, -1e-6F, 1e-3F, 1e-3F, -2.0F, 0.0F}).constant("b", {3}, bias);
  b.node("Conv", {"x", "w", "b"}, {"y"});
  return b;
}

const calibration::Ranges kTinyInput{{"x", {0.0F, 0.001F}}, {"y", {-1.0F, 1.0F}}};

// The expected scales: onnxruntime 1.31.1, QDQQuantizer._adjust_weight_scale_for_int32_bias with input scale
// 0x1.072c0ap-18 and compute_scale_zp's weight scales 0x1.0e8c94p-27, 0x1.083548p-17, 0x1.020408p-6.
TEST(BiasScales, AreRaisedPerChannelAsOnnxRuntimeDoes) {
  const auto w = compute(with_bias({30000.0F, -7.5F, 100.0F}), kTinyInput).values.at("w");
  ASSERT_EQ(w.slices.size(), 3u);
  EXPECT_EQ(w.slices[0].scale, 0x1.c80568p+1F);
  EXPECT_EQ(w.slices[1].scale, 0x1.d2f732p-11F);
  EXPECT_EQ(w.slices[2].scale, 0x1.020408p-6F);
}

TEST(BiasScales, AreRaisedForTheLargestBiasWithoutChannels) {
  const auto options = config([](auto& c) { c.per_channel = false; });
  EXPECT_EQ(compute(with_bias({30000.0F, -7.5F, 100.0F}), kTinyInput, options).values.at("w").slices.at(0).scale,
            0x1.c80568p+1F);
  EXPECT_EQ(compute(with_bias({-7.5F, 100.0F, -30000.0F}), kTinyInput, options).values.at("w").slices.at(0).scale,
            0x1.c80568p+1F);
}

TEST(BiasScales, StayWhereTheBiasFits) {
  const auto w = compute(with_bias({0.0F, 0.0F, 100.0F}), kTinyInput).values.at("w");
  EXPECT_EQ(w.slices[0].scale, 0x1.0e8c94p-27F);
  EXPECT_EQ(w.slices[1].scale, 0x1.083548p-17F);
  EXPECT_EQ(w.slices[2].scale, 0x1.020408p-6F);
}

TEST(BiasScales, RiseForUnsignedWeightsToo) {
  const auto options = config([](auto& c) {
    c.weight_type = QuantType::uint8;
    c.per_channel = false;
  });
  Builder b;  // no negative weights: the zero point is 0 all the same
  b.input("x")
      .constant("w", {1, 2, 1, 1}, {1e-6F, 2e-6F})
      .constant("b", {1}, {3e4F})
      .node("Conv", {"x", "w", "b"}, {"y"});
  const auto values = compute(b, kTinyInput, options).values;
  const auto w = values.at("w").slices.at(0);
  EXPECT_EQ(w.zero_point, 0);
  EXPECT_GT(w.scale, static_cast<float>(static_cast<double>(2e-6F) / 255));
  EXPECT_LE(3e4 / (static_cast<double>(values.at("x").slices.at(0).scale) * w.scale), 2147483647.0);
}

TEST(BiasScales, EveryBiasThenFitsInt32) {
  for (float bias = 1e-6F; bias < 1e30F; bias *= 1.4F) {
    const auto params = compute(with_bias({bias, -bias, 0.5F * bias}), kTinyInput).values;
    for (std::size_t c = 0; c < 3; ++c) {
      const double scale = params.at("x").slices[0].scale * params.at("w").slices[c].scale;
      EXPECT_LE(static_cast<double>(bias) / scale, c == 2 ? 2.0 * 2147483647.0 : 2147483647.0) << bias;
    }
  }
}

TEST(BiasScales, BetaCountsAsPartOfTheBias) {
  Builder b;
  b.input("x").constant("w", {1, 1}, {1.0F}).constant("b", {1}, {1e4F});
  b.node("Gemm", {"x", "w", "b"}, {"y"}, {onnx::Attribute::of_float("beta", 1e6F)});
  const auto params = compute(b, kTinyInput).values;
  EXPECT_LE(1e4 * 1e6 / (params.at("x").slices[0].scale * params.at("w").slices[0].scale), 2147483647.0);
}

TEST(Assign, SharesAlongChainsInAnyOrder) {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  b.node("Reshape", {"c"}, {"r"}).node("Transpose", {"r"}, {"t"});
  auto placement = b.place();
  std::reverse(placement.marks.begin(), placement.marks.end());
  auto proposals = testing::proposals({{"x", {0, 1}}, {"c", {-1, 3}}});
  proposals.constants = scan_weights(b.model, placement, false);
  const auto [_, params, notes] = assign(b.model, placement, proposals, {});
  for (const char* value : {"r", "t"}) {
    EXPECT_EQ(params.at(value).source, "c");
    EXPECT_EQ(params.at(value).slices.at(0).scale, params.at("c").slices.at(0).scale);
  }
  EXPECT_EQ(params.at("c").slices[0].zero_point, 64);  // 4 / 255 a step: 1 is 63.75 steps from the bottom
  EXPECT_TRUE(notes.empty());
}

TEST(Assign, NotesValuesThatWereNeverSeenAndThoseThatShareWithThem) {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1}).node("Conv", {"x", "w"}, {"c"}).node("Reshape", {"c"}, {"r"});
  const auto result = compute(b, {{"x", {0, 1}}});
  EXPECT_FALSE(result.values.contains("c"));
  EXPECT_FALSE(result.values.contains("r"));
  ASSERT_EQ(result.notes.size(), 2u);
  EXPECT_NE(result.notes[0].find("'c' stays in float"), std::string::npos);
  EXPECT_NE(result.notes[1].find("'r' stays in float"), std::string::npos);
}

TEST(ConstantFormat, PerChannelIsAlwaysSymmetric) {
  Mark mark{"w", true, true, Granularity::along(0), {}};
  const auto options = config([](auto& c) {
    c.weight_type = QuantType::uint8;
    c.weight_symmetric = false;
  });
  EXPECT_TRUE(constant_format(mark, options).symmetric);
  mark.granularity = Granularity::tensor();
  EXPECT_FALSE(constant_format(mark, options).symmetric);
  EXPECT_TRUE(constant_format(mark, {}).symmetric);  // int8 unless told otherwise
  mark.is_weight = false;
  EXPECT_EQ(constant_format(mark, {}).type, QuantType::uint8);
  EXPECT_FALSE(constant_format(mark, {}).symmetric);
}

TEST(ConstantFormat, ChannelsOfZerosAreAsOthersButWhereQuantizeStaticIsFollowed) {
  const auto zero_points = [](const std::string& preset) {
    Builder b;
    b.input("x").constant("w", {3, 1, 1, 1}, {1, 0, -2}).node("Conv", {"x", "w"}, {"y"});
    const auto options = config([&](auto& c) {
      c.preset = preset;
      c.weight_type = QuantType::uint8;
      c.weight_symmetric = true;
    });
    const auto assigned = compute(b, {{"x", {0, 1}}, {"y", {0, 1}}}, options);
    std::vector<int> found;
    for (const auto& p : assigned.values.at("w").slices) found.push_back(p.zero_point);
    return found;
  };
  EXPECT_EQ(zero_points("balanced"), (std::vector<int>{128, 128, 128}));
  EXPECT_EQ(zero_points("plain"), (std::vector<int>{128, 0, 128}));
}

TEST(ScanWeights, NonfiniteWeightsStopOrStayInFloat) {
  Builder b = with_bias({0, 0, 0});
  b.constant("bad", {3, 3, 1, 1}, {1, 2, std::numeric_limits<float>::quiet_NaN(), 4, 5, 6, 7, 8, 9})
      .node("Conv", {"y", "bad"}, {"z"});
  auto placement = b.place();
  try {
    scan_weights(b.model, placement, false);
    ADD_FAILURE() << "NaN was accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'bad' (Conv 'n_z')"), std::string::npos) << text;
  }
  placement = b.place();
  const auto extremes = scan_weights(b.model, placement, true);
  EXPECT_FALSE(extremes.contains("bad"));
  EXPECT_EQ(testing::find(placement, "bad"), nullptr);
  EXPECT_NE(testing::find(placement, "w"), nullptr);
  EXPECT_EQ(placement.notes.size(), 1u);
}

TEST(Zeros, HaveTheScaleOfWhatReadsThemOnTheHtp) {
  Builder b;
  b.input("x").constant("w", {4, 4, 1, 1}).constant("zeros", {1, 4, 1, 1}, {0, 0, 0, 0});
  b.constant("other", {1, 4, 1, 1}).node("Conv", {"x", "w"}, {"c"}).node("Concat", {"zeros", "c"}, {"y"});
  b.node("Mul", {"y", "other"}, {"z"}).output("z");
  const calibration::Ranges ranges{
      {"x", {-1.0F, 3.0F}}, {"c", {-2.0F, 2.0F}}, {"y", {-2.0F, 3.0F}}, {"z", {-8.0F, 8.0F}}};
  for (const std::string target : {"qnn:a16", "qnn", "amd-npu:a16w8"}) {
    const auto options = config([&](auto& c) {
      c.target = target;
      if (target == "qnn:a16") c.activation_type = QuantType::uint16;
      if (target == "amd-npu:a16w8") c.activation_type = QuantType::int16;
    });
    const auto values = compute(b, ranges, options).values;
    const auto &zeros = values.at("zeros").slices.at(0), &result = values.at("y").slices.at(0);
    if (target.starts_with("qnn")) {
      EXPECT_EQ(zeros.scale, result.scale);
      EXPECT_EQ(zeros.zero_point, result.zero_point);
    } else {
      EXPECT_EQ(zeros.scale, 1.0F);
    }
    EXPECT_NE(values.at("other").slices.at(0).scale, result.scale);
  }
}

}  // namespace
}  // namespace detent::quantization
