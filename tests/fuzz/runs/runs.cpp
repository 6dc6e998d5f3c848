// Whole runs on a model: inspect, plan, quantize and weights alone; check, compare and verify, which read what others
// have quantized. The runtime is in this process.
#include <cstdlib>

#include "data/given_inputs.h"
#include "detent/calibrate.h"
#include "detent/check.h"
#include "detent/compare.h"
#include "detent/inspect.h"
#include "detent/plan.h"
#include "detent/quantize.h"
#include "detent/verify.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/model.h"

namespace detent::fuzz {
namespace {

namespace fs = std::filesystem;

/// As detent writes a model: readable again.
void check_written(const fs::path& path) {
  require(try_to([&] { onnx::read_model(path); }), "a model that was written can be read");
}

/// Two samples of made-up values for the model's inputs, none where they would be large or have types that samples do
/// not come in.
class Samples final : public SampleStream {
 public:
  explicit Samples(const onnx::Model& model) {
    std::vector<data::InputSpec> inputs;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const auto& input : model.graph.inputs) {
      const auto is_input = [&](const auto& tensor) { return tensor.name == input.name; };
      if (std::ranges::any_of(model.graph.initializers, is_input) || !input.shape) continue;
      std::vector<std::int64_t> shape;
      double size = 1;
      for (const auto& dim : *input.shape) {
        shape.push_back(dim.is_static() ? dim.value : 2);
        size *= static_cast<double>(shape.back());
      }
      if (size > 4096) return;
      inputs.push_back({input.name, input.type, shape});
      shapes[input.name] = shape;
    }
    if (!try_to([&] { arrays_ = data::synthetic_inputs(inputs, shapes); })) return;
    for (const auto& input : inputs) names_.push_back(input.name);
  }

  std::optional<std::vector<NamedArray>> next() override {
    if (given_ == 2) return std::nullopt;
    ++given_;
    std::vector<NamedArray> sample;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      sample.push_back(
          {names_[i], static_cast<ElementType>(arrays_[i].type), arrays_[i].shape, arrays_[i].bytes, arrays_[i].owner});
    }
    return sample;
  }
  void rewind() override { given_ = 0; }
  std::size_t size() const override { return 2; }

 private:
  std::vector<std::string> names_;
  std::vector<data::Array> arrays_;
  int given_ = 0;
};

/// What a first byte chooses of the options.
QuantizeOptions options_of(std::uint8_t choice, const fs::path& model) {
  QuantizeOptions options;
  require(std::getenv("DETENT_ONNXRUNTIME") != nullptr, "$DETENT_ONNXRUNTIME names the runtime");
  const char* preset = (choice & 1) != 0 ? "plain" : "balanced";
  options.config = preset_config(preset);
  options.method = preset_method(preset);
  options.model = model;
  options.output = folder() / "out.onnx";
  options.kernel_table = folder() / "kernels.json";
  options.optimize_for = OptimizeFor::size;  // no timing: it takes long, and differs from run to run
  options.bench = false;
  options.threads = 1;
  options.resources.memory_budget = std::uint64_t{256} << 20;
  options.resources.disk_budget = std::uint64_t{16} << 20;
  options.resources.work_dir = folder();
  options.resources.time_limit = 5;
  options.allow_nonfinite = true;
  if ((choice & 2) != 0) options.accuracy.sensitivity = SensitivityMode::off;
  if ((choice & 4) != 0) options.config.per_channel = true;
  if ((choice & 8) != 0) options.resources.segments = 2;
  if ((choice & 16) != 0) options.external_data_threshold = 16;
  if ((choice & 32) != 0) options.config.activation_type = QuantType::int16;
  return options;
}

void run_inspect(Bytes input) {
  const MemoryFile model(input);
  InspectOptions options;
  options.model = model.path();
  try_to([&] { inspect(options); });
}

void run_plan(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  try_to([&] {
    Samples samples(onnx::read_model(model.path()));
    QuantizeOptions options = options_of(choice, model.path());
    options.samples = &samples;
    plan(options);
  });
}

void run_quantize(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  fs::remove(folder() / "out.onnx");
  try_to([&] {
    Samples samples(onnx::read_model(model.path()));
    QuantizeOptions options = options_of(choice, model.path());
    options.samples = &samples;
    quantize(options);
    check_written(options.output);
  });
}

void run_weights(Bytes input) {
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  fs::remove(folder() / "out.onnx");
  try_to([&] {
    QuantizeOptions options = options_of(static_cast<std::uint8_t>(choice & 16), model.path());
    options.weights_only.enabled = true;
    options.allow_nonfinite = false;
    options.weights_only.bits = (choice & 1) != 0 ? WeightBits::eight : WeightBits::four;
    options.weights_only.form = (choice & 2) != 0 ? WeightForm::matmul_nbits : WeightForm::qdq;
    quantize(options);
    check_written(options.output);
  });
}

/// A model that a stranger has quantized: beside itself, since any two models have to be alike in more than a mutation
/// leaves.
void run_quantized(Bytes input) {
  static constexpr const char* kTargets[] = {"ort-cpu", "openvino", "qnn",     "tensorrt",
                                             "xnnpack", "coreml",   "amd-npu", "tflite-like"};
  Parts parts(input);
  const std::uint8_t choice = parts.byte();
  const MemoryFile model(parts.rest());
  try_to([&] {
    CheckOptions options;
    options.model = model.path();
    options.target = kTargets[choice % std::size(kTargets)];
    check(options);
  });
  const auto beside = [&](auto options, auto call) {
    try_to([&] {
      Samples samples(onnx::read_model(model.path()));
      options.float_model = options.quantized_model = model.path();
      options.samples = &samples;
      options.threads = 1;
      call(options);
    });
  };
  if ((choice & 8) != 0) return beside(CompareOptions(), compare);
  VerifyOptions options;
  options.bench = false;
  beside(options, verify);
}

const Registered quantized{{"quantized", run_quantized, {&kModel}, 1, 300}};
const Registered inspects{{"inspect", run_inspect, {&kModel}, 0, 60}};
const Registered plans{{"plan", run_plan, {&kModel}, 1, 200}};
const Registered quantizes{{"quantize", run_quantize, {&kModel}, 1, 120}};
const Registered weights{{"weights", run_weights, {&kModel}, 1, 50}};

}  // namespace
}  // namespace detent::fuzz
