// What is refused before anything runs.
#include "config/validate.h"

#include <cmath>
#include <limits>

#include "support.h"

namespace detent::config {
namespace {

using test::contains;
using test::usage_error_of;

QuantizeOptions good() {
  QuantizeOptions options;
  options.calibration_data = "samples";
  return options;
}

template <class Change>
std::string refused(Change change, Command command = kQuantize) {
  auto options = good();
  change(options);
  return usage_error_of([&] { validate(options, command); });
}

void set_number(const Member& member, double value) {
  if (auto* const* v = std::get_if<int*>(&member)) **v = static_cast<int>(value);
  if (auto* const* v = std::get_if<std::int64_t*>(&member)) **v = static_cast<std::int64_t>(value);
  if (auto* const* v = std::get_if<std::uint64_t*>(&member)) **v = static_cast<std::uint64_t>(value);
  if (auto* const* v = std::get_if<double*>(&member)) **v = value;
  if (auto* const* v = std::get_if<std::optional<double>*>(&member)) **v = value;
  if (auto* const* v = std::get_if<std::vector<double>*>(&member)) **v = {value};
  if (auto* const* v = std::get_if<std::pair<double, double>*>(&member)) **v = {1, value};
}

TEST(Validate, DefaultsAreGood) {
  EXPECT_NO_THROW(validate(good()));
  EXPECT_NO_THROW(validate(QuantizeOptions(), kPlan));
  EXPECT_NO_THROW(validate(CalibrateOptions()));
  EXPECT_NO_THROW(validate(CompareOptions()));
}

TEST(Validate, NumbersOutsideTheirBoundsAreNamed) {
  std::size_t checked = 0;
  for (const auto& option : options()) {
    const auto& bounds = option.bounds;
    const bool in_library = option.at.quantize != nullptr;
    if ((option.commands & kPlan) == 0 || !in_library || bounds.min == Bounds().min) continue;
    SCOPED_TRACE(option.name);
    const bool is_count = std::holds_alternative<std::uint64_t*>(any_member(option));
    std::vector<double> wrong{bounds.above ? bounds.min : bounds.min - 1};
    if (std::isfinite(bounds.max)) wrong.push_back(bounds.max + 1);
    if (type_of(any_member(option), option.form) == "number") wrong.push_back(std::nan(""));
    for (const double value : wrong) {
      if (is_count && value < 0) continue;
      for (const auto command : {kQuantize, kPlan}) {
        const auto says = refused([&](auto& o) { set_number(*option.member(o), value); }, command);
        EXPECT_TRUE(contains(says, option.spelled())) << value << ": " << says;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 15U);
}

// `plan` once took what `quantize` refused.
TEST(Validate, APlanIsCheckedAsARunIs) {
  EXPECT_TRUE(contains(refused([](auto& o) { o.workers = 0; }, kPlan), "--workers must be at least 1"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.threads = -1; }, kPlan), "--threads must not be negative"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.accuracy.command = "score"; }, kPlan), "--accuracy-command"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.device.pin_memory = false; }, kPlan), "--set no-pin-memory"));
}

TEST(Validate, PercentilesAndBins) {
  for (const double p : {0.0, -1.0, 100.0001, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_TRUE(contains(refused([p](auto& o) { o.method.percentile = p; }), "--set percentile must be above 0"));
    EXPECT_TRUE(contains(refused([p](auto& o) { o.method.candidates = {99, p}; }), "--set candidates must be above 0"));
  }
  EXPECT_TRUE(contains(refused([](auto& o) { o.method.candidates.clear(); }), "--set candidates"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.method.entropy_levels = 1; }), "--set entropy-levels"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.method.entropy_bins = 127; }), "--set entropy-bins"));
  EXPECT_TRUE(contains(refused([](auto& o) { o.method.entropy_bins = (1 << 20) + 1; }), "--set entropy-bins"));
}

TEST(Validate, RangesThatMakeNoSense) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto says = [](float min, float max) {
    return refused([&](auto& o) { o.overrides = {{"x", {}, std::pair(min, max)}}; });
  };
  for (const auto& [min, max] :
       {std::pair(1.0F, 0.5F), {kNan, 1.0F}, {0.0F, kNan}, {-kInfinity, 0.0F}, {0.0F, kInfinity}}) {
    for (const auto* part : {"--set tensor-range", "'x'", "MIN <= MAX"}) EXPECT_TRUE(contains(says(min, max), part));
  }
  EXPECT_EQ(says(2, 2), "");
}

TEST(Validate, TheMostCommonScaleNeedsSymmetricPowersOfTwo) {
  for (const auto& [power, symmetric] : {std::pair(false, false), {true, false}, {false, true}}) {
    const auto says = refused([p = power, s = symmetric](auto& o) {
      o.method.most_common = true;
      o.config.power_of_two_scale = p;
      o.config.activation_symmetric = s;
    });
    EXPECT_TRUE(contains(says, "--set most-common")) << says;
  }
}

TEST(Validate, FourBitsAreForWeightsOfFullRange) {
  for (const auto type : {QuantType::int4, QuantType::uint4}) {
    EXPECT_EQ(refused([&](auto& o) { o.config.weight_type = type; }), "");
    EXPECT_TRUE(contains(refused([&](auto& o) {
                           o.config.weight_type = type;
                           o.config.weight_range = WeightRange::reduced;
                         }),
                         "--set weight-range=reduced"));
    EXPECT_TRUE(contains(refused([&](auto& o) { o.config.activation_type = type; }), "--activation-type"));
  }
}

TEST(Validate, FineTuningThatDoesNotGoTogether) {
  const auto says = [](WeightSolver rounding, const auto& change) {
    return refused([&](auto& o) {
      o.finetune.rounding = rounding;
      change(o.finetune);
    });
  };
  EXPECT_TRUE(contains(says(WeightSolver::gptq, [](auto& f) { f.form = FinetuneForm::streamed; }), "Gram form"));
  EXPECT_TRUE(contains(says(WeightSolver::gptq, [](auto& f) { f.drop_ratio = 0.5; }), "--set drop-ratio"));
  EXPECT_TRUE(contains(refused([](auto& o) {
                         o.finetune.rounding = WeightSolver::gptq;
                         o.calibration_data.reset();
                         o.statistics = "s";
                       }),
                       "--finetune needs samples"));
}

TEST(Validate, MeasuringNeedsAPresetThatMeasures) {
  const auto plain = [](auto& o) { o.config.preset = "plain"; };
  const auto says = refused([&](auto& o) {
    plain(o);
    o.accuracy.target = 0.9;
  });
  EXPECT_TRUE(contains(says, "--preset plain says so already")) << says;
  EXPECT_TRUE(contains(refused([](auto& o) { o.config.preset = "best"; }), "balanced, plain"));
}

TEST(Validate, DevicesAndTheirOptions) {
  EXPECT_TRUE(contains(refused([](auto& o) { o.device.memory_budget = 1; }), "--device cuda:0"));
  EXPECT_TRUE(contains(refused([](auto& o) {
                         o.device.cuda = {0};
                         o.workers = 2;
                       }),
                       "one sample at a time"));
  CalibrateOptions calibrate;
  calibrate.workers = 0;
  EXPECT_TRUE(contains(usage_error_of([&] { validate(calibrate); }), "--workers must be at least 1"));
  calibrate = {};
  calibrate.most_common = true;
  calibrate.histograms = false;
  EXPECT_TRUE(contains(usage_error_of([&] { validate(calibrate); }), "--set most-common"));
}

}  // namespace
}  // namespace detent::config
