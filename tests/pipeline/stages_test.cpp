// Which stages each format goes through, told from the table alone: no model, no runtime.
#include "pipeline/stages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/formats.h"
#include "config/presets.h"

namespace detent::pipeline {
namespace {

using Names = std::vector<std::string>;

Recipe recipe(QuantizeOptions options, bool with_samples) {
  if (with_samples) options.calibration_data = "samples";
  return recipe_of_options(options);
}

Names names_of(const Recipe& made) {
  Names names;
  for (const auto& stage : stages()) {
    if (has(stage, made)) names.emplace_back(stage.name);
  }
  return names;
}

Names stages_of(const std::string& format, bool with_samples) {
  return names_of(recipe(options_of_format(format), with_samples));
}

TEST(Stages, OfIntegers) {
  EXPECT_EQ(stages_of("int8", true), (Names{"read the model", "claim the output", "rewrite the graph", "place pairs",
                                            "leave in float what is faster so", "calibrate",
                                            "measure, and apply remedies", "emit pairs, and tune weights",
                                            "leave the rest to rank 0", "write and prove", "choose again", "time"}));
}

TEST(Stages, OfScalesThatAreFoundWhileTheModelRuns) {
  EXPECT_EQ(stages_of("int8-dynamic", false),
            (Names{"leave all to rank 0", "read the model", "claim the output", "rewrite the graph",
                   "emit dynamic operators", "write and prove", "time"}));
}

TEST(Stages, OfBlocks) {
  EXPECT_EQ(stages_of("q4", false),
            (Names{"read the model", "claim the output", "put the graph in order", "fold computed weights",
                   "place blocks", "share out blocks", "leave the rest to rank 0", "emit blocks", "write and prove",
                   "see whether it runs here", "time"}));
}

TEST(Stages, OfBlocksAmongFloatsOf16Bits) {
  EXPECT_EQ(stages_of("q4f16", true),
            (Names{"read the model", "claim the output", "put the graph in order", "fold computed weights",
                   "place blocks", "open the samples", "solve blocks", "observe the cache", "share out blocks",
                   "leave the rest to rank 0", "emit blocks", "hand the rest on", "select floats", "observe floats",
                   "convert floats", "write and prove", "compare"}));
}

TEST(Stages, OfFloats) {
  EXPECT_EQ(stages_of("fp16", true),
            (Names{"leave all to rank 0", "read the model", "claim the output", "rewrite the graph", "select floats",
                   "observe floats", "convert floats", "write and prove", "compare"}));
}

TEST(Stages, OfMixtures) {
  QuantizeOptions options;
  options.config = preset_config("balanced");
  options.node_formats = {"fc=q4", "^.*conv.*=int8"};
  EXPECT_EQ(names_of(recipe(options, true)),
            (Names{"read the model", "claim the output", "rewrite the graph", "check the samples", "place pairs",
                   "calibrate", "measure, and apply remedies", "tune weights", "leave the rest to rank 0",
                   "mix formats", "write and prove", "time", "compare"}));
  options.node_formats = {"fc=q4", "^.*gate.*=int8-dynamic"};
  EXPECT_EQ(names_of(recipe(options, false)),
            (Names{"read the model", "claim the output", "rewrite the graph", "leave the rest to rank 0", "mix formats",
                   "write and prove", "time"}));
}

// Whatever is asked for, a model is read once, and one file is written and proved.
TEST(Stages, WriteOneFile) {
  for (const auto& format : config::formats()) {
    for (const bool with_samples : {true, false}) {
      const auto names = stages_of(std::string(format.name), with_samples);
      EXPECT_EQ(std::count(names.begin(), names.end(), "read the model"), 1) << format.name;
      EXPECT_EQ(std::count(names.begin(), names.end(), "write and prove"), 1) << format.name;
    }
  }
}

// What decides the size of the file tells of it beforehand; all that comes before decides what there is to place.
TEST(Stages, AreInEachPlan) {
  for (const auto& format : config::formats()) {
    const auto made = recipe(options_of_format(std::string(format.name)), true);
    for (const auto& stage : stages()) {
      if (!has(stage, made)) continue;
      for (const auto* begin : {"read", "claim", "rewrite", "place", "calibrate", "emit", "convert", "mix"}) {
        const bool tells = stage.predict != nullptr || !stage.name.starts_with(begin);
        EXPECT_TRUE(tells) << format.name << ": " << stage.name;
      }
    }
  }
}

}  // namespace
}  // namespace detent::pipeline
