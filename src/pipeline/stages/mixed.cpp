#include "pipeline/stages/mixed.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "onnx/write.h"
#include "pipeline/deployed.h"
#include "pipeline/stages.h"
#include "run/node_formats.h"

namespace detent::pipeline {
namespace {

using config::NodeFormat;

class Mixture {
 public:
  explicit Mixture(Run& run) : run_(run), options_(run.options) {}

  void make() {
    begin();
    make_blocks();
    make_dynamic();
    make_static();
    run_.model = onnx::read_model(model_);
  }

 private:
  // All steps see the names of the prepared model, which are also those of runs of a single format.
  void begin() {
    auto& prepared = run_.prepared;
    const auto possible = run::possible_formats(prepared, options_.config);
    const auto formats = run::given_formats(prepared, possible, options_.node_formats);
    steps_ = run::steps_of(prepared, possible, formats);
    for (std::size_t n = 0; n < formats.size(); ++n) {
      if (formats[n] != NodeFormat::fp32) ++run_.result.nodes_quantized;
      if (formats[n] == NodeFormat::fp32 && !possible[n].empty()) ++run_.result.nodes_in_float;
    }
    if (run_.result.nodes_quantized == 0)
      throw usage_error("--node-formats leaves all nodes in float", "give a node another format than fp32");
    model_ = run_.work->scratch() / "float.onnx";
    onnx::write_model(prepared.model, model_, {});
    prepared = {};
  }

  QuantizeOptions step(const char* name) const {
    auto options = options_;
    options.node_formats.clear();
    options.model = model_;
    options.output = run_.work->scratch() / fmt::format("{}.onnx", name);
    options.external_data_threshold.reset();
    options.external_data_suffix.clear();
    options.prepared_output.reset();
    options.profile.reset();
    options.report.reset();
    options.trace.reset();
    options.bench = false;
    options.resources.resume = false;
    options.resources.work_dir = run_.work->scratch();
    options.config.input_shapes.clear();
    options.config.float_type = FloatType::keep;
    options.config.formats_given = true;
    if (options.samples != nullptr) options.samples->rewind();
    return options;
  }

  void make_blocks() {
    if (steps_.blocks.empty()) return;
    auto options = step("blocks");
    options.weights_only.enabled = true;
    options.weights_only.node_bits = steps_.block_bits;
    options.config.nodes = steps_.blocks;
    run_.result.weights = take(options, "weights in blocks").weights;
  }

  void make_dynamic() {
    if (steps_.dynamic.empty()) return;
    auto options = step("dynamic");
    options.config.activations = Activations::dynamic;
    options.config.nodes = steps_.dynamic;
    options.calibration_data.reset();
    options.samples = nullptr;
    take(options, "int8-dynamic");
  }

  void make_static() {
    if (steps_.fixed.empty()) return;
    auto options = step("static");
    options.config.exclude_nodes = steps_.in_float;
    options.config.wide_nodes = steps_.wide;
    if (!steps_.wide.empty()) options.accuracy.fallback = AccuracyFallback::int16;
    options.optimize_for = OptimizeFor::size;
    run_.result.activations = take(options, "int8").activations;
  }

  QuantizeResult take(const QuantizeOptions& options, std::string_view name) {
    auto made = run_stages(options);
    model_ = options.output;
    auto& all = run_.result;
    all.samples = std::max(all.samples, made.samples);
    for (const auto& note : made.notes) {
      if (std::find(all.notes.begin(), all.notes.end(), note) == all.notes.end())
        all.notes.push_back(fmt::format("{}: {}", name, note));
    }
    return made;
  }

  Run& run_;
  const QuantizeOptions& options_;
  run::FormatSteps steps_;
  std::filesystem::path model_;  // of the steps so far
};

}  // namespace

void mix_formats(Run& run) { Mixture(run).make(); }

}  // namespace detent::pipeline
