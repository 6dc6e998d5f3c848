#include "pipeline/convert_floats.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "config/derived.h"
#include "data/sample.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "pipeline/check_model.h"
#include "pipeline/deployed.h"
#include "quantization/emit/float16.h"
#include "quantization/float_placement.h"
#include "quantization/selection.h"
#include "run/calibration_device.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/samples.h"
#include "run/single_run.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

using profile::Step;

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

// One run: the stages in their order.
class Conversion : run::SingleRun {
 public:
  Conversion(const QuantizeOptions& options, const ConversionRequest& request)
      : SingleRun(options), request_(request) {}

  QuantizeResult run() {
    prepare();
    if (options_.config.float_type == FloatType::float32) {
      converted_ = std::move(prepared_.model);
    } else {
      if (config::has_samples(options_)) {
        observe();
      } else if (request_.known != nullptr && request_.known->samples > 0) {
        take(*request_.known);
      }
      convert();
    }
    write();
    if (result_.floats && config::has_samples(options_) && !must_be_of_use(options_)) compare(options_.output);
    return finish();
  }

 private:
  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    SingleRun::prepare(open());
    if (request_.original.empty()) append(prepared_.notes);
    facts_ = {.type = options_.config.float_type,
              .keep_io_types = options_.config.keep_io_types,
              .allowed = quantization::select_of_all_types(prepared_.model, options_.config)};
    const auto& nodes = prepared_.model.graph.nodes;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const auto& name = nodes[n].id();
      if (request_.in_float32.contains(name) || prepared_.unseen.contains(name)) facts_.allowed[n] = false;
    }
    write_prepared();
  }

  // The extremes of all values, and shapes as static as the first sample makes them.
  void observe() {
    const auto scope = profiler_.scope(Step::calibration);
    const auto source =
        run::open_samples(options_.calibration_data.value_or(""), options_.samples, run::input_specs(prepared_.model),
                          {.max_samples = options_.max_samples,
                           .batch_size = options_.batch_size,
                           .file_memory = run::memory_for_samples(options_.resources)});
    auto types = run::static_types(prepared_.types, prepared_.model, runtime_, *source);
    const auto placement = observed();
    if (is_known(placement)) {
      take(*request_.known);
    } else {
      collect(placement, *source);
    }
    append(source->notes());
    prepared_.types = std::move(types);
  }

  // All floats that can be.
  quantization::Placement observed() const {
    quantization::Placement placement;
    const graph::Index index(prepared_.model);
    for (auto& value : quantization::float_values(prepared_.model, prepared_.types)) {
      const int maker = index.producer(value);
      const auto& nodes = prepared_.model.graph.nodes;
      if (maker != graph::kNone && prepared_.unseen.contains(nodes[static_cast<std::size_t>(maker)].id())) continue;
      placement.marks.emplace_back().value = std::move(value);
    }
    return placement;
  }

  bool is_known(const quantization::Placement& placement) const {
    const auto values = placement.to_observe();
    return request_.known != nullptr && std::all_of(values.begin(), values.end(), [&](const auto& value) {
             return request_.known->tensors.contains(value);
           });
  }

  void collect(const quantization::Placement& placement, data::SampleSource& source) {
    // Infinite values, as in masks, are values of 16-bit floats as well.
    run::CollectOptions collect{.allow_nonfinite = true, .workers = options_.workers};
    run::DeviceCalibration device(options_.device, placement.marks.size(), false, work_->scratch(), nullptr);
    device.lend(collect);
    auto [statistics, notes] = run::collect_within(
        {runtime_, options_.resources, work_->path(), options_.threads, options_.progress, options_.stop}, *work_,
        prepared_, placement, source, collect);
    for (const auto& more : {notes, device.notes()}) append(more);
    take(std::move(statistics));
  }

  void take(calibration::Statistics statistics) {
    statistics_ = std::move(statistics);
    result_.samples = statistics_->samples;
    facts_.statistics = &*statistics_;
  }

  void convert() {
    const auto scope = profiler_.scope(Step::quantization_static);
    if (!statistics_)
      result_.notes.emplace_back(
          "there are no samples: weights and operators decided what becomes 16-bit, and no value was looked at");
    auto& model = prepared_.model;
    const auto placed = quantization::place_floats(model, prepared_.types, facts_);
    append(placed.notes);
    FloatConversion floats;
    for (const bool low : placed.low) floats.nodes += low ? 1 : 0;
    floats.nodes_kept = placed.kept;
    const auto casts = cast_nodes(model);
    const auto bytes = float_bytes(model);
    converted_ = quantization::emit_floats(std::move(model), prepared_.types, placed, options_.config.float_type,
                                           options_.config.keep_io_types);
    floats.casts = cast_nodes(converted_) - std::min(casts, cast_nodes(converted_));
    const auto left = float_bytes(converted_);
    floats.constants = bytes > 0 ? 1 - static_cast<double>(left) / static_cast<double>(bytes) : 0;
    result_.floats = floats;
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    graph::store_once(converted_, prepared_.computed, true);
    TargetNotes told;
    SingleRun::write(converted_, {}, [&](const auto& file) {
      if (result_.floats && must_be_of_use(options_)) {
        compare(file);
        // What integers of a step before this one cost was judged there.
        if (request_.original.empty()) refuse_useless(options_, result_, "16-bit floats");
      }
      told = target_notes(options_, file, runtime_);
    });
    append(told.lines);
  }

  // Beside the model that was given.
  void compare(const std::filesystem::path& file) {
    auto options = options_;
    if (!request_.original.empty()) options.model = request_.original;
    options.output = file;
    result_.model_bytes_after = run::size_on_disk(onnx::read_model(file));
    report_.comparison = compare_models(options, work_->path(), profiler_, result_);
  }

  const ConversionRequest& request_;
  quantization::FloatFacts facts_;
  std::optional<calibration::Statistics> statistics_;
  onnx::Model converted_;
};

}  // namespace

QuantizeResult convert_floats(const QuantizeOptions& options, const ConversionRequest& request) {
  return Conversion(options, request).run();
}

}  // namespace detent::pipeline
