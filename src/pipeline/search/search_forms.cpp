#include "pipeline/search/search_forms.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "pipeline/blocks/drafted_blocks.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/blocks.h"
#include "quantization/emit/dynamic.h"
#include "run/model/choose_by_speed.h"

namespace detent::pipeline {
namespace {

using config::NodeFormat;

QuantConfig of_one_node(QuantConfig config) {
  config.nodes.clear();
  config.exclude_nodes.clear();
  config.op_types.clear();
  config.exclude_op_types.clear();
  return config;
}

onnx::Model in_dynamic_integers(onnx::Model part, QuantConfig config) {
  config = of_one_node(std::move(config));
  config.activations = Activations::dynamic;
  return quantization::make_dynamic(std::move(part), config, true).model;
}

onnx::Model in_blocks(onnx::Model part, const QuantConfig& config, int bits, std::stop_token stop) {
  WeightsOnlyConfig blocks;
  blocks.enabled = true;
  blocks.bits = static_cast<WeightBits>(bits);
  DraftedBlocks draft;
  draft.placement = quantization::place_blocks(part, of_one_node(config), blocks);
  draft.model = std::move(part);
  auto streams = draft.streams(WeightMethod::nearest, 1, std::move(stop));
  return quantization::emit_blocks(std::move(draft.model), draft.placement, std::move(streams), blocks);
}

QuantConfig widened(QuantConfig config) {
  config.activation_type = QuantType::uint16;
  return config;
}

}  // namespace

FormatTimes::FormatTimes(const speed::TimedModel& subject, const exec::Runtime& runtime,
                         std::filesystem::path directory, const std::optional<std::filesystem::path>& table,
                         std::stop_token stop)
    : subject_(subject),
      wide_(widened(subject.config)),
      wide_subject_{subject.model, subject.index, subject.types, wide_},
      runtime_(runtime),
      directory_(std::move(directory)),
      file_(table),
      stop_(std::move(stop)),
      table_(run::open_kernel_table(table, runtime.version(), notes_)) {}

const speed::KernelTimes* FormatTimes::times(std::size_t node) {
  const auto kernel = speed::kernel_table_key(subject_, node);
  if (kernel.empty()) return nullptr;
  if (table_.find(kernel) == nullptr) {
    check_may_measure(kernel, node);
    complete_ = false;
    table_.add(kernel, speed::time_kernel(subject_, node, runtime_, directory_, stop_));
  }
  return table_.find(kernel);
}

double FormatTimes::seconds(std::size_t node, NodeFormat format) {
  const bool wide = format == NodeFormat::a16w8;
  auto kernel = speed::kernel_table_key(wide ? wide_subject_ : subject_, node);
  if (kernel.empty()) return 0;
  if (!wide) kernel += fmt::format(" {}", config::name_of(format));
  if (table_.find(kernel) == nullptr) {
    check_may_measure(kernel, node);
    complete_ = false;
    table_.add(kernel, measured(kernel, node, format));
  }
  const auto& found = *table_.find(kernel);
  return found.quantize + found.in_integers + found.dequantize;
}

void FormatTimes::check_may_measure(const std::string& kernel, std::size_t node) const {
  if (measures_) return;
  throw bad_input(fmt::format("the kernel table '{}' has no times of {} ('{}')", file_->string(),
                              subject_.model.graph.nodes[node].label(), kernel),
                  "search this model on that machine with --set kernel-table=FILE, and bring FILE here");
}

speed::KernelTimes FormatTimes::measured(const std::string& kernel, std::size_t node, NodeFormat format) {
  if (stop_.stop_requested()) throw interrupted();
  if (format == NodeFormat::a16w8) return speed::time_kernel(wide_subject_, node, runtime_, directory_, stop_);
  const int bits = config::block_bits(format);
  if (bits == 0 && format != NodeFormat::dynamic) throw internal_error(fmt::format("no form of its own: {}", kernel));
  speed::KernelTimes times;
  times.in_float = this->times(node)->in_float;
  times.in_integers = speed::time_form(
      subject_, node,
      [&](onnx::Model alone) {
        return bits == 0 ? in_dynamic_integers(std::move(alone), subject_.config)
                         : in_blocks(std::move(alone), subject_.config, bits, stop_);
      },
      runtime_, directory_, stop_);
  return times;
}

std::vector<std::string> FormatTimes::save() {
  if (!complete_) run::save_kernel_table(table_, file_, stop_, notes_);
  return notes_;
}

}  // namespace detent::pipeline
