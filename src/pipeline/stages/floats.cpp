#include "pipeline/stages/floats.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/validate.h"
#include "data/sample.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/write.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/integers.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/selection.h"
#include "run/collect.h"
#include "run/model/finish.h"
#include "run/model/prepare.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

// Of a step that adds nothing but another type.
QuantConfig conversion_alone(const QuantConfig& whole) {
  QuantConfig config;
  config.preset = "none";
  config.target = whole.target;
  config.float_type = whole.float_type;
  config.keep_io_types = whole.keep_io_types;
  return config;
}

std::uint64_t float_bytes(const onnx::Model& model) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.type == onnx::DataType::float32) bytes += tensor.data.size();
  }
  return bytes;
}

std::size_t cast_nodes(const onnx::Model& model) {
  const auto& nodes = model.graph.nodes;
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const auto& n) { return n.is("Cast"); }));
}

// All floats that can be.
quantization::Placement observed(const run::Prepared& prepared) {
  quantization::Placement placement;
  const graph::Index index(prepared.model);
  for (auto& value : quantization::float_values(prepared.model, prepared.types)) {
    const int maker = index.producer(value);
    const auto& nodes = prepared.model.graph.nodes;
    if (maker != graph::kNone && prepared.is_unseen(nodes[static_cast<std::size_t>(maker)].id())) continue;
    placement.marks.emplace_back().value = std::move(value);
  }
  return placement;
}

bool are_known(const quantization::Placement& placement, const calibration::Statistics* known) {
  const auto values = placement.to_observe();
  return known != nullptr &&
         std::all_of(values.begin(), values.end(), [&](const auto& value) { return known->tensors.contains(value); });
}

const run::RunDirectory& directory_of(const Run& run) {
  return run.floats->directory ? *run.floats->directory : *run.work;
}

void take(Run& run, calibration::Statistics statistics) {
  auto& work = *run.floats;
  work.statistics = std::move(statistics);
  work.facts.statistics = &*work.statistics;
  if (!run.recipe.lowers_rest) run.result.samples = work.statistics->samples;
}

void collect(Run& run, const quantization::Placement& placement, data::SampleSource& source) {
  const auto& options = run.options;
  const auto& directory = directory_of(run);
  // Infinite values, as in masks, are values of 16-bit floats as well.
  run::CollectOptions collect{.allow_nonfinite = true, .workers = options.workers};
  const DeviceConfig cpu;
  run::DeviceCalibration device(run.recipe.lowers_rest ? cpu : options.device, placement.marks.size(), false,
                                directory.scratch(), nullptr);
  device.lend(collect);
  auto [statistics, notes] =
      run::collect_within(run.context(directory.path()), directory, run.prepared, placement, source, collect);
  run.note(notes);
  run.note(device.notes());
  take(run, std::move(statistics));
}

// Another directory, since what a killed run left in the first is of the model before.
void make_own_directory(Run& run, const std::filesystem::path& file) {
  auto resources = run.options.resources;
  resources.work_dir = run.work->scratch();
  resources.resume = false;
  run.floats->directory.emplace(resources, run::run_identity({.model = onnx::read_model(file),
                                                              .output = file,
                                                              .calibration_data = run.options.calibration_data,
                                                              .options = config::run_identity(run.options)}));
}

// Of a constant and its transpose that have got different types the 32-bit floats are stored, which the runtime turns
// and casts when it loads the model.
void store_transposed_once(const run::Prepared& prepared, FloatType type, onnx::Model& model) {
  constexpr std::size_t kLeast = 1024;  // bytes; less takes no more room than the nodes do
  const auto low = type == FloatType::float16 ? onnx::DataType::float16 : onnx::DataType::bfloat16;
  graph::Index index(model);
  const auto with_type = [&](const std::string& name, onnx::DataType wanted) {
    const int at = index.initializer(name);
    const auto& tensors = model.graph.initializers;
    return at != graph::kNone && tensors[static_cast<std::size_t>(at)].type == wanted &&
           tensors[static_cast<std::size_t>(at)].data.size() >= kLeast;
  };
  for (const auto& [turned, source] : prepared.transposed) {
    for (const auto& [high, lowered] : {std::pair(source, turned), std::pair(turned, source)}) {
      if (!with_type(high, onnx::DataType::float32) || !with_type(lowered, low) || index.is_output(lowered)) continue;
      const auto between = index.fresh_name(lowered + "_float32");
      std::vector nodes{
          onnx::Node("Transpose", index.fresh_name(lowered + "_Transpose"), std::vector{high}, std::vector{between},
                     std::vector{onnx::Attribute::of_ints("perm", {1, 0})}),
          onnx::Node("Cast", index.fresh_name(lowered + "_Cast"), std::vector{between}, std::vector{lowered},
                     std::vector{onnx::Attribute::of_int("to", static_cast<std::int64_t>(low))})};
      model.graph.nodes.insert(model.graph.nodes.begin(), nodes.begin(), nodes.end());
      std::erase_if(model.graph.initializers, [&](const auto& tensor) { return tensor.name == lowered; });
      return store_transposed_once(prepared, type, model);
    }
  }
}

void convert_to_16_bits(Run& run) {
  auto& work = *run.floats;
  auto& model = run.prepared.model;
  if (!work.statistics)
    run.result.notes.emplace_back("there are no samples: only weights and operators decided what becomes 16-bit");
  quantization::Assignment assignment;
  const auto& placed = assignment.placement = quantization::place_floats(model, run.prepared.types, work.facts);
  run.note(placed.notes);
  FloatConversion floats{.nodes = placed.quantized, .nodes_kept = placed.in_float};
  const auto casts = cast_nodes(model);
  const auto bytes = float_bytes(model);
  run.model = quantization::emit_floats({std::move(model), run.prepared.types}, assignment).model;
  store_transposed_once(run.prepared, work.config.float_type, run.model);
  floats.casts = cast_nodes(run.model) - std::min(casts, cast_nodes(run.model));
  const auto left = float_bytes(run.model);
  floats.constants = bytes > 0 ? 1 - static_cast<double>(left) / static_cast<double>(bytes) : 0;
  run.result.floats = floats;
}

// Samples of the float model, for one whose cache has integers. What is in the cache of a sample was refused before.
class SamplesOfIntegerCache final : public data::SampleSource {
 public:
  SamplesOfIntegerCache(std::unique_ptr<data::SampleSource> given, std::vector<data::InputSpec> inputs)
      : given_(std::move(given)), inputs_(std::move(inputs)) {}

  std::optional<data::Sample> next() override {
    auto sample = given_->next();
    if (sample) sample->inputs = run::with_cache_of(sample->inputs, inputs_);
    return sample;
  }
  void rewind() override { given_->rewind(); }
  void skip(std::size_t count) override { given_->skip(count); }
  std::size_t sample_count() const override { return given_->sample_count(); }
  std::vector<std::string> notes() const override { return given_->notes(); }

 private:
  std::unique_ptr<data::SampleSource> given_;
  std::vector<data::InputSpec> inputs_;
};

std::unique_ptr<data::SampleSource> open_samples(const Run& run) {
  auto inputs = run::input_specs(run.prepared.model);
  if (run.options.kv_cache.type == KvCacheType::keep) return run.open_samples(std::move(inputs));
  auto given = run.open_samples(run::input_specs(onnx::read_model(run.options.model)));
  return std::make_unique<SamplesOfIntegerCache>(std::move(given), std::move(inputs));
}

}  // namespace

void lower_rest(Run& run) {
  run.floats = std::make_unique<FloatWork>();
  auto& work = *run.floats;
  work.config = conversion_alone(run.options.config);
  work.has_samples = run.recipe.has_samples;
  const auto file = run.work->scratch() / "quantized.onnx";
  auto& quantized = run.integers ? run.integers->draft.emitted->model : run.model;
  quantized.set_producer("detent", DETENT_VERSION);
  onnx::write_model(quantized, file, {run.options.external_data_threshold});
  if (run.blocks) {
    work.known = run.blocks->extremes();
    if (auto reason = run.blocks->reason_against_samples(file); !reason.empty()) {
      run.result.notes.push_back(std::move(reason));
      work.has_samples = false;
    }
    run.model = {};
    run.blocks->release();
  }
  make_own_directory(run, file);
  if (run.options.samples != nullptr) run.options.samples->rewind();
  run.prepared = run::prepare(onnx::read_model(file), work.config, run.load_runtime(), work.directory->scratch(),
                              run.profiler, run.limits(), {.skipped = run.options.skip_passes});
}

void select_floats(Run& run) {
  if (!run.floats) {
    run.floats = std::make_unique<FloatWork>();
    run.floats->config = run.options.config;
    run.floats->has_samples = run.recipe.has_samples;
    run.floats->known = run.shared.extremes;
  }
  auto& facts = run.floats->facts;
  const auto& config = run.floats->config;
  facts = {.type = config.float_type,
           .keep_io_types = config.keep_io_types,
           .allowed = quantization::select_of_all_types(run.prepared.model, config)};
  const auto& nodes = run.prepared.model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const auto& name = nodes[n].id();
    if (run.recipe.in_float32.contains(name) || run.shared.in_float32.contains(name) || run.prepared.is_unseen(name))
      facts.allowed[n] = false;
  }
}

void observe_floats(Run& run) {
  auto& work = *run.floats;
  if (!work.has_samples) {
    if (work.known != nullptr && work.known->samples > 0) take(run, *work.known);
    return;
  }
  auto& prepared = run.prepared;
  const auto source = open_samples(run);
  auto types = run::static_types(prepared.types, prepared.model, *run.runtime, *source);
  const auto placement = observed(prepared);
  if (are_known(placement, work.known)) {
    take(run, *work.known);
  } else {
    collect(run, placement, *source);
  }
  run.note(source->notes());
  prepared.types = std::move(types);
}

void convert_floats(Run& run) {
  if (run.floats->config.float_type == FloatType::float32) {
    run.model = std::move(run.prepared.model);
  } else {
    convert_to_16_bits(run);
    // A table that is also a product's weight is a Reshape of its integers.
    if (run.blocks) graph::recompute_constants_at_load(run.model, run.prepared.folded);
  }
  graph::deduplicate_constants(run.model, run.prepared.shapes_stored_once, true);
}

}  // namespace detent::pipeline
