// Precedence: the command line before the file of --config, and of an option and its opposite the last one given.
#include "cli/options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "detent/error.h"

namespace detent::cli {
namespace {

class Options : public ::testing::Test {
 protected:
  QuantizeOptions read(std::vector<std::string> words, const std::string& yaml = {}) {
    const auto path = (directory_.path() / "options.yaml").string();
    if (!yaml.empty()) {
      std::ofstream(path) << yaml;
      words.insert(words.begin(), {"--config", path});
    }
    words.insert(words.begin(), {"model.onnx", "-o", "out.onnx"});
    CLI::App app{"", "quantize"};
    const DeclaredOptions declared(app, config::kQuantize);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    QuantizeOptions options;
    declared.read(options, line_);
    return options;
  }
  std::string error(const std::vector<std::string>& words, const std::string& yaml = {}) {
    try {
      read(words, yaml);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      return e.what();
    }
    return {};
  }

  TempDir directory_{""};
  config::CommandLine line_;
};

TEST_F(Options, OfAnOptionAndItsOppositeTheLastOneCounts) {
  EXPECT_TRUE(read({"--per-tensor", "--per-channel"}).config.per_channel);
  EXPECT_FALSE(read({"--per-channel", "--per-tensor"}).config.per_channel);
  EXPECT_FALSE(read({"--per-tensor", "--per-channel", "--per-tensor"}).config.per_channel);
  EXPECT_EQ(read({"--set", "weight-symmetric", "--set", "weight-asymmetric"}).config.weight_symmetric, false);
  EXPECT_EQ(read({"--set", "weight-asymmetric", "--set", "weight-symmetric"}).config.weight_symmetric, true);
}

TEST_F(Options, AFlagOnTheCommandLineTakesPrecedenceOverTheFile) {
  EXPECT_TRUE(read({"--per-channel"}, "per-tensor: true\n").config.per_channel);
  EXPECT_FALSE(read({"--per-tensor"}, "per-channel: true\n").config.per_channel);
  EXPECT_FALSE(read({}, "per-tensor: true\n").config.per_channel);
  EXPECT_FALSE(read({}, "per_channel: false\n").config.per_channel);
  EXPECT_EQ(read({"--samples", "3"}, "samples: 5\n").max_samples, 3U);
  EXPECT_EQ(read({"--nodes", "a"}, "nodes: [b, c]\n").config.nodes, std::vector<std::string>{"a"});
}

TEST_F(Options, AListInTheFileIsOneOverrideForEachEntry) {
  const auto methods = read({}, "tensor-method: [x=minmax, y=entropy]\n").overrides;
  ASSERT_EQ(methods.size(), 2U);
  EXPECT_EQ(methods[1].tensor, "y");
  EXPECT_EQ(methods[1].method, CalibrationMethod::entropy);
  const auto ranges = read({}, "tensor_range: ['x=-1,2', 'y=0,1']\n").overrides;
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].range, std::pair(-1.0F, 2.0F));
  EXPECT_EQ(read({}, "tensor-range: x=-1,2\n").overrides.size(), 1U);
}

TEST_F(Options, EntriesOfAListMayHaveCommas) {
  EXPECT_EQ(read({}, "nodes: ['^a{1,2}', b]\n").config.nodes, (std::vector<std::string>{"^a{1,2}", "b"}));
  EXPECT_EQ(read({"--nodes", "a,b", "--nodes", "c"}).config.nodes, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(read({}, "beta-range: [10, 3]\n").finetune.beta_range, std::pair(10.0, 3.0));
  EXPECT_EQ(read({"--set", "beta-range=10,3"}).finetune.beta_range, std::pair(10.0, 3.0));
}

TEST_F(Options, TimesHaveUnits) {
  const std::pair<const char*, double> limits[] = {
      {"90", 90}, {"1.5s", 1.5}, {"10min", 600}, {"2h", 7200}, {"5ms", 5e-3}};
  for (const auto& [text, seconds] : limits) {
    EXPECT_DOUBLE_EQ(read({"--time-limit", text}).resources.time_limit.value(), seconds) << text;
    EXPECT_DOUBLE_EQ(read({"--set", std::string("checkpoint-seconds=") + text}).resources.checkpoint_seconds, seconds);
  }
  EXPECT_NE(error({"--time-limit", "2days"}).find("'2days' is not a time, as in 8ms, 90s, 10min or 2h"),
            std::string::npos);
}

TEST_F(Options, WhatFewPeopleNeedIsGivenBySet) {
  EXPECT_EQ(read({"--set", "finetune-prefetch=4"}).finetune.num_workers, 4U);
  EXPECT_EQ(read({"--set", "finetune_seed=6"}, "finetune-seed: 5\n").finetune.seed, 6U);
  EXPECT_EQ(read({"--set", "finetune-seed=6", "--set", "finetune-seed=7"}).finetune.seed, 7U);
  EXPECT_FALSE(read({"--set", "no-activation-order"}).finetune.activation_order);
  EXPECT_FALSE(read({"--set", "activation-order=false"}).finetune.activation_order);
  EXPECT_EQ(read({"--set", "tensor-range=a=0,1", "--set", "tensor-range=b=0,2"}).overrides.size(), 2U);
  EXPECT_EQ(read({"--damping", "0.1"}).finetune.damping, read({"--set", "damping=0.1"}).finetune.damping);
  EXPECT_EQ(error({"--set", "damping"}), "--set damping needs a value");
  EXPECT_EQ(error({"--set", "dampin=1"}), "--set: there is no option 'dampin'");
  EXPECT_EQ(error({"--set", "method=mse"}), "--set: 'method' is an option of its own");
  EXPECT_EQ(read({"--set", "finetune-nodes=a,b", "--set", "finetune-nodes=c"}).finetune.nodes.size(), 3U);
}

TEST_F(Options, ThePresetIsWhatTheOthersStartFrom) {
  EXPECT_EQ(read({}).config.weight_range, WeightRange::pairs);
  EXPECT_EQ(read({"--preset", "plain"}).config.weight_range, WeightRange::full);
  EXPECT_EQ(read({"--weight-type", "int4", "--preset", "balanced"}).config.weight_type, QuantType::int4);
  EXPECT_EQ(read({}, "weight-range: reduced\n").config.weight_range, WeightRange::reduced);
  EXPECT_EQ(read({}, "preset: plain\n").method.method, CalibrationMethod::minmax);
  EXPECT_EQ(read({"--method", "mse"}, "preset: plain\n").method.method, CalibrationMethod::mse);
}

TEST_F(Options, ErrorsNameTheOptionAsItIsSpelled) {
  EXPECT_EQ(error({"--threads", "many"}), "--threads: 'many' is not a whole number");
  EXPECT_EQ(error({"--samples", "-3"}), "--samples must not be negative");
  EXPECT_NE(error({}, "methd: mse\n").find("no option 'methd'"), std::string::npos);
  EXPECT_NE(error({}, "per-tensor: maybe\n").find("--per-tensor: 'maybe'"), std::string::npos);
  EXPECT_NE(error({}, "json: [1, 2]\n").find("--json"), std::string::npos);
}

TEST_F(Options, EveryOptionIsDeclaredOnceWithItsHelp) {
  for (const auto command :
       {config::kQuantize, config::kCalibrate, config::kPlan, config::kCompare, config::kInspect}) {
    CLI::App app;
    const DeclaredOptions declared(app, command);
    for (const auto& option : config::options()) {
      if ((option.commands & command) == 0) continue;
      const std::string dashes = option.positional() ? "" : "--";
      const auto* found = app.get_option_no_throw(dashes + std::string(option.name));
      ASSERT_NE(found, nullptr) << option.name;
      EXPECT_EQ(found->get_group().empty(), option.detail) << option.name;  // without one no help shows it
      EXPECT_NE(found->get_description().find(option.help), std::string::npos) << option.name;
    }
  }
}

}  // namespace
}  // namespace detent::cli
