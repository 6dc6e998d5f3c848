#include "pipeline/quantize_dynamic.h"

#include <algorithm>

#include "base/error.h"
#include "config/derived.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "pipeline/deployed.h"
#include "quantization/dynamic.h"
#include "quantization/emit/dynamic.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/samples.h"
#include "run/single_run.h"

namespace detent::pipeline {
namespace {

using profile::Step;

constexpr std::int64_t kOpsetOfDynamicQuantizeLinear = 11;

class DynamicRun : run::SingleRun {
 public:
  explicit DynamicRun(const QuantizeOptions& options) : SingleRun(options) {}

  QuantizeResult run() {
    prepare();
    quantize();
    write();
    if (inputs_) time_models(options_, *inputs_, runtime_, profiler_, result_);
    if (config::has_samples(options_)) report_.comparison = compare_models(options_, work_->path(), profiler_, result_);
    if (result_.accuracy) result_.samples = result_.accuracy->samples;
    return finish();
  }

 private:
  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    SingleRun::prepare(open());
    check_samples(options_);
    append(prepared_.notes);
    auto& model = prepared_.model;
    if (model.opset() < kOpsetOfDynamicQuantizeLinear) append(graph::upgrade_opset(model, prepared_.types));
    if (options_.bench) inputs_ = inputs_to_time(model, result_);
    write_prepared();
  }

  void quantize() {
    const auto scope = profiler_.scope(Step::quantization_dynamic);
    auto placement = quantization::place_dynamic(prepared_.model, options_.config, prepared_.transposed);
    append(placement.notes);
    result_.nodes_quantized = placement.nodes.size();
    result_.nodes_in_float = placement.in_float;
    quantization::Proposals proposals;
    proposals.constants = quantization::scan_weights(prepared_.model, placement.weights, options_.allow_nonfinite);
    append(placement.weights.notes);
    const auto assignment = quantization::assign(prepared_.model, placement.weights, proposals, options_.config);
    append(assignment.notes);
    note_shared(placement.weights);
    emitted_ = quantization::emit_dynamic(std::move(prepared_.model), placement, assignment.values);
    result_.notes.emplace_back(
        "an activation has one scale for its whole batch, so what shares a batch with large values loses precision; "
        "--weights-only with 8 bits does not depend on the batch");
  }

  // Weights that some nodes read as they are and others transposed.
  void note_shared(const quantization::Placement& weights) {
    const graph::Index index(prepared_.model);
    for (const auto& mark : weights.marks) {
      if (index.consumers(mark.value).size() < 2) continue;
      auto dims = prepared_.model.graph.initializers[static_cast<std::size_t>(index.initializer(mark.value))].dims;
      std::sort(dims.begin(), dims.end());
      prepared_.computed.insert(std::move(dims));
    }
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    graph::store_once(emitted_, prepared_.computed, true);
    SingleRun::write(emitted_);
  }

  std::optional<std::vector<data::InputSpec>> inputs_;
  onnx::Model emitted_;
};

}  // namespace

QuantizeResult quantize_dynamic(const QuantizeOptions& options) { return DynamicRun(options).run(); }

}  // namespace detent::pipeline
