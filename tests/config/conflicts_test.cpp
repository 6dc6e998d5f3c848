#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

#include "config/presets.h"
#include "config/validate.h"
#include "support.h"

namespace detent::config {
namespace {

// Every pair of options, in every kind of run: what is refused is refused in words, and each row of the table is
// needed.

struct Setting {
  const Option* option;
  std::string text;
};

std::vector<std::string> texts_of(const Option& option) {
  QuantizeOptions none;
  const auto type = type_of(*option.member(none), option.form);
  if (type == "flag") return {"true", "false"};
  if (type == "choice") return words_of(option);
  if (type == "choices") return {words_of(option).front()};
  if (type == "devices") return {"cuda:0"};
  if (type == "overrides") return {option.form == Form::tensor_range ? "x=0,1" : "x=entropy"};
  if (type == "shapes") return {"x:1x2"};
  if (type == "size") return {"1MiB"};
  if (type == "pair") return {"20,2"};
  if (option.texts != nullptr) {
    std::vector<std::string> texts;
    for (const auto& [text, means] : option.texts()) texts.push_back(text);
    return texts;
  }
  if (type == "text" || type == "texts" || type == "path" || type == "paths") return {"x"};
  return {"0.5", "2", "4096"};
}

// All values that are worth a look, of all options of quantize.
const std::vector<Setting>& settings() {
  static const auto all = [] {
    std::vector<Setting> found;
    for (const auto& option : options()) {
      if ((option.commands & kQuantize) == 0 || !option.of_library() || option.name == "family") continue;
      for (auto& text : texts_of(option)) found.push_back({&option, std::move(text)});
    }
    return found;
  }();
  return all;
}

// False: the text is no value of this option.
bool give(QuantizeOptions& options, const Setting& setting) {
  const auto member = *setting.option->member(options);
  try {
    assign(*setting.option, member, is_list(member) ? split_list(setting.text) : std::vector{setting.text}, "--x");
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The kinds of runs, each by the options that ask for it.
std::vector<QuantizeOptions> kinds_of_runs() {
  std::vector<QuantizeOptions> kinds(12);
  for (const int blocks : {1, 2, 3}) kinds[blocks].weights_only.enabled = true;
  kinds[2].config.weight_type = QuantType::float8e4m3fn;
  kinds[3].weights_only.form = WeightForm::qdq;
  kinds[4].config.preset = "none";
  kinds[5].config.preset = "none";
  kinds[5].kv_cache.type = KvCacheType::int8;
  for (const int plain : {6, 7, 8}) kinds[plain].config.preset = "plain";
  kinds[7].config.block_float = BlockFloat::bfp16;
  kinds[8].config.weight_type = kinds[8].config.activation_type = QuantType::float8e4m3fn;
  kinds[9].config.activations = Activations::dynamic;
  kinds[10].finetune.solver = WeightSolver::adaround;
  kinds[11].node_formats = {"a=int8"};
  const auto without_samples = kinds;
  for (auto& kind : kinds) kind.calibration_data = "samples";
  kinds.insert(kinds.end(), without_samples.begin(), without_samples.end());
  return kinds;
}

std::string error_of(const QuantizeOptions& options, Command command) {
  try {
    validate(options, command);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    return e.what();
  }
  return {};
}

// The row that an error comes from, by the text around its values.
const Conflict* row_of(const std::string& error) {
  for (const auto& row : conflicts()) {
    const auto open = row.why.find('{');
    const auto close = row.why.rfind('}');
    const bool has_values = open != std::string_view::npos;
    if (!has_values && error == row.why) return &row;
    if (has_values && error.starts_with(row.why.substr(0, open)) && error.ends_with(row.why.substr(close + 1)))
      return &row;
  }
  return nullptr;
}

// Calls `see` with the error of each pair in each kind of run; empty where the pair is accepted.
template <class See>
void for_each_pair(See see) {
  const auto& all = settings();
  for (const auto& kind : kinds_of_runs()) {
    for (std::size_t a = 0; a < all.size(); ++a) {
      QuantizeOptions one = kind;
      if (!give(one, all[a])) continue;
      for (std::size_t b = a; b < all.size(); ++b) {
        QuantizeOptions both = one;
        if (!give(both, all[b])) continue;
        see(error_of(both, kQuantize));
        if (a == b) see(error_of(both, kPlan));
      }
    }
  }
}

TEST(Conflicts, EveryPairIsAcceptedOrRefusedInWordsAndEveryRowIsNeeded) {
  std::set<std::string> errors;
  for_each_pair([&](std::string error) { errors.insert(std::move(error)); });
  std::set<std::string_view> seen;
  for (const auto& error : errors) {
    EXPECT_EQ(error.find_first_of("{}"), std::string::npos) << error;
    if (const auto* row = row_of(error)) seen.insert(row->why);
  }
  for (const auto& row : conflicts()) EXPECT_TRUE(seen.contains(row.why)) << "no pair is refused with: " << row.why;
}

TEST(Conflicts, ValuesInErrorsAreOfOptionsThatThereAre) {
  for (const auto& row : conflicts()) {
    for (std::string_view rest = row.why; rest.find('{') != std::string_view::npos;) {
      const auto open = rest.find('{');
      const auto close = rest.find('}', open);
      const auto name = rest.substr(open + 1, close - open - 1);
      EXPECT_NE(find(name, kQuantize), nullptr) << name;
      rest.remove_prefix(close + 1);
    }
  }
}

// What is refused before anything runs.

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
  EXPECT_NO_THROW(validate(Options(), kCalibrate));
  EXPECT_NO_THROW(validate(Options(), kCompare));
}

TEST(Validate, NumbersOutsideTheirBoundsAreNamed) {
  std::size_t checked = 0;
  for (const auto& option : options()) {
    const auto& bounds = option.bounds;
    const bool in_library = option.of_library();
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
      o.finetune.solver = rounding;
      change(o.finetune);
    });
  };
  EXPECT_TRUE(contains(says(WeightSolver::gptq, [](auto& f) { f.form = FinetuneForm::streamed; }), "Gram form"));
  EXPECT_TRUE(contains(says(WeightSolver::gptq, [](auto& f) { f.drop_ratio = 0.5; }), "--set drop-ratio"));
  EXPECT_TRUE(contains(refused([](auto& o) {
                         o.finetune.solver = WeightSolver::gptq;
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
  EXPECT_TRUE(contains(says, "which --preset plain has fixed")) << says;
  EXPECT_TRUE(contains(refused([](auto& o) { o.config.preset = "best"; }), "balanced, plain"));
}

TEST(Validate, DevicesAndTheirOptions) {
  EXPECT_TRUE(contains(refused([](auto& o) { o.device.memory_budget = 1; }), "--device cuda:0"));
  EXPECT_TRUE(contains(refused([](auto& o) {
                         o.device.cuda = {0};
                         o.workers = 2;
                       }),
                       "one sample at a time"));
  Options calibrate;
  calibrate.workers = 0;
  EXPECT_TRUE(contains(usage_error_of([&] { validate(calibrate, kCalibrate); }), "--workers must be at least 1"));
  calibrate = {};
  calibrate.method.most_common = true;
  calibrate.histograms = false;
  EXPECT_TRUE(contains(usage_error_of([&] { validate(calibrate, kCalibrate); }), "--set most-common"));
}

}  // namespace
}  // namespace detent::config
