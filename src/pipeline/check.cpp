// What a target makes of each node, from its table and its row.
#include "pipeline/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "checking/diagnosis.h"
#include "checking/openvino_rules.h"
#include "checking/ort_rules.h"
#include "checking/signature.h"
#include "config/targets.h"
#include "exec/guarded_session.h"
#include "graph/constants.h"
#include "graph/execution.h"
#include "graph/rewrites/rewrite.h"
#include "graph/rewrites/unfold.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "quantization/emit/emitters.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/model/finish.h"
#include "run/model/target_runtime.h"

namespace detent {
namespace {

using checking::Signature;

bool is_block_float(const onnx::Node& node) { return node.domain() == onnx::kQuarkDomain; }

bool is_pair(const onnx::Node& node) { return graph::is_q_or_dq(node) || is_block_float(node); }

bool is_quantized(const Signature& forms) {
  return forms.first.text != "f32" && forms.first.text != "bf16" && forms.first.text != "-";
}

std::string precision_of(std::string_view kernel, const Signature& forms) {
  if (kernel != "htp") return kernel == "none" || kernel == "cpu" || kernel == "refused" ? "" : std::string(kernel);
  if (!is_quantized(forms)) return "float16";
  return forms.first.text.find("16") != std::string::npos ? "int16" : "int8";
}

std::string described(const Signature& forms) {
  std::string text = forms.first.text;
  if (forms.second.text != "-") text += fmt::format(" x {}", forms.second.text);
  return fmt::format("{} -> {}", text, forms.output.text);
}

std::string change_to(const checking::Row* row, const Signature& forms) {
  if (row == nullptr) return "";
  std::vector<std::string> changes;
  if (row->first != forms.first.text) changes.push_back(fmt::format("first input {}", row->first));
  if (row->second != forms.second.text && row->second != "-" && row->second != "*")
    changes.push_back(fmt::format("second input {}", row->second));
  if (changes.empty() || checking::differs(row->output, forms.output.text))
    changes.push_back(fmt::format("output {}", row->output));
  return fmt::format("{}", fmt::join(changes, ", "));
}

class Check {
 public:
  Check(const CheckOptions& options, const onnx::Model& model, const graph::ValueTypes& types)
      : target_(config::target(options.config)),
        own_table_(target_.table),
        table_(checking::table_of(target_.is_ort_cpu ? "ort-cpu" : target_.name)),
        model_(model),
        types_(types),
        index_(model),
        static_shapes_(graph::dynamic_inputs(model).empty()) {
    result_.target = options.config.target;
    if (table_ == nullptr) table_ = &own_table_;
    if (in_openvino()) joined_ = checking::outcome_of_chained_products(model, index_, types);
  }

  CheckResult run() {
    check_model();
    result_.macs = 0;
    result_.integer_macs = 0;
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      const auto& node = model_.graph.nodes[n];
      if (!is_pair(node)) add(n, judged(node));
    }
    count_partitions();
    return std::move(result_);
  }

 private:
  void check_model() {
    if (target_.static_shapes) {
      for (const auto* input : graph::dynamic_inputs(model_))
        result_.problems.push_back(
            fmt::format("input '{}' is {}, and the target needs static shapes: give --shape {}:…", input->name,
                        graph::shape_text(*input), input->name));
    }
    if (model_.opset() < target_.opset)
      result_.problems.push_back(
          fmt::format("the opset is {}, and the target wants at least {}", model_.opset(), target_.opset));
  }

  bool has_floats(const onnx::Node& node) const {
    const auto is_float = [&](const auto& value) {
      const auto type = graph::type_of(model_, types_, value);
      return type == onnx::DataType::float32 || type == onnx::DataType::float16 || type == onnx::DataType::bfloat16;
    };
    return std::any_of(node.outputs().begin(), node.outputs().end(), is_float) ||
           std::any_of(node.inputs().begin(), node.inputs().end(), is_float);
  }

  // Why runtimes have no kernel for the node; empty: they have.
  std::string why_gone(const onnx::Node& node) const {
    if (node.is("Identity")) return "it computes nothing";
    if (!node.is("Shape")) return "";
    const bool known = graph::static_shape(types_, node.inputs().front()).has_value();
    return known ? "its result is known before the model runs" : "";
  }

  CheckedNode judged(const onnx::Node& node) const {
    CheckedNode checked;
    checked.name = node.id();
    checked.op_type = node.op_type();
    if (const auto work = graph::work_of(model_, index_, types_, node)) checked.macs = work->macs;
    if (!has_floats(node)) {
      checked.rule = "it computes with no floats";
      return checked;
    }
    if (auto gone = why_gone(node); !gone.empty()) {
      checked.rule = std::move(gone);
      return checked;
    }
    Signature forms = checking::signature_of(model_, index_, node, target_);
    const bool has_16_bits = graph::type_of(model_, types_, node.outputs().front()) == onnx::DataType::bfloat16;
    if (target_.name.starts_with("amd-npu") && has_16_bits && !is_quantized(forms)) forms.first.text = "bf16";
    if (const int maker = fused_into(node, forms); maker != graph::kNone) {
      auto with = judged_before(static_cast<std::size_t>(maker));
      const bool behind_product = graph::is_product(model_.graph.nodes[static_cast<std::size_t>(maker)]);
      if (!in_openvino() || with.precision == "int8" || !behind_product) {
        with.name = node.id();
        with.op_type = node.op_type();
        with.macs = 0;
        return with;
      }
    }
    judge_by_table(node, forms, checked);
    if (checked.verdict == Verdict::accepted) {
      if (auto broken = checking::violation(model_, index_, node, forms, target_); !broken.rule.empty()) {
        checked.verdict = Verdict::falls_back;
        checked.rule = std::move(broken.rule);
        checked.suggestion = std::move(broken.suggestion);
      }
    }
    if (target_.static_shapes && !static_shapes_ && checked.verdict == Verdict::accepted) {
      checked.verdict = Verdict::refused;
      checked.rule = "shapes are not static";
      checked.suggestion = "--shape";
    }
    return checked;
  }

  bool has_cpu_of_x86() const {
#if defined(__aarch64__)
    if (target_.is_this_machine) return false;
#endif
    return target_.is_ort_cpu && target_.name != "ort-cpu:arm";
  }
  bool in_openvino() const { return target_.name == "openvino"; }

  CheckedNode judged_before(std::size_t position) const {
    const auto known = places_.find(position);
    return known == places_.end() ? judged(model_.graph.nodes[position]) : result_.nodes[known->second];
  }

  // The node whose kernel runs this one along.
  int fused_into(const onnx::Node& node, const Signature& forms) const {
    if (in_openvino()) return checking::node_fused_into(model_, index_, node, static_shapes_);
    if (is_quantized(forms) || !checking::fuses_with_maker(model_, index_, node, target_)) return graph::kNone;
    return index_.producer(node.inputs().front());
  }

  void judge_by_table(const onnx::Node& node, const Signature& forms, CheckedNode& checked) const {
    if (in_openvino() && reads_blocks_from_last(node)) {
      checked.verdict = Verdict::refused;
      checked.rule = "OpenVINO loads no blocks along an axis that is counted from the last";
      checked.suggestion = "--set accuracy-level=4";
      return;
    }
    if (in_openvino()) {
      if (is_quantized(forms) && judge_joined(node, checked)) return;
      if (const auto beyond = checking::kernel_override(node, model_, index_, forms, static_shapes_)) {
        checked.precision = beyond->kernel;
        checked.rule = beyond->rule;
        checked.suggestion = beyond->suggestion;
        if (beyond->kernel != "int8") checked.verdict = Verdict::falls_back;
        return;
      }
    }
    const bool makes_uint8 = forms.output.text.starts_with("u");
    if (has_cpu_of_x86() && !makes_uint8 && checking::mixes_signs(model_, index_, node)) {
      checked.precision = "float32";
      checked.verdict = Verdict::falls_back;
      checked.rule = "int8 values that are read once become uint8 on x86 CPUs, others do not, and here are both";
      checked.suggestion = "activations of uint8";
      return;
    }
    if (target_.is_ort_cpu && is_quantized(forms)) {
      auto rank = graph::rank_of(types_, node.outputs().front());
      if (rank != 2 && !static_shapes_) rank.reset();
      if (const auto why = checking::product_in_float(model_, index_, node, forms, rank); !why.rule.empty()) {
        checked.precision = "float32";
        checked.verdict = Verdict::falls_back;
        checked.rule = why.rule;
        checked.suggestion = why.suggestion;
        return;
      }
    }
    if (target_.name.starts_with("qnn")) {
      if (const auto why = checking::left_to_cpu_despite_table(node, model_, index_, forms); !why.empty()) {
        checked.on_cpu = true;
        checked.verdict = Verdict::falls_back;
        checked.rule = why;
        checked.suggestion = "a bias in float";
        return;
      }
    }
    const auto* row = table_->find(node.op_type(), forms);
    if (row == nullptr) return judge_unknown(node, forms, checked);
    checked.precision = precision_of(row->kernel, forms);
    checked.rule = row->rule.empty() ? fmt::format("{} {}: {}", node.op_type(), described(forms), row->kernel)
                                     : std::string(row->rule);
    checked.on_cpu = row->kernel == "cpu";
    if (row->kernel == "refused") checked.verdict = Verdict::refused;
    const bool in_float = is_quantized(forms) && !checking::on_integers(*row) && row->kernel != "none";
    if (checked.verdict == Verdict::accepted && (checked.on_cpu || in_float)) checked.verdict = Verdict::falls_back;
    if (checked.verdict != Verdict::accepted)
      checked.suggestion = change_to(table_->nearest_on_integers(node.op_type(), forms), forms);
  }

  bool reads_blocks_from_last(const onnx::Node& node) const {
    return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const auto& value) {
      const int maker = index_.producer(value);
      if (maker == graph::kNone) return false;
      const auto& made = model_.graph.nodes[static_cast<std::size_t>(maker)];
      return made.is("DequantizeLinear") && made.int_or("block_size", 0) > 0 && made.int_or("axis", 1) < 0;
    });
  }

  // A product that OpenVINO joins with others.
  bool judge_joined(const onnx::Node& node, CheckedNode& checked) const {
    const auto found = joined_.find(index_.producer(node.outputs().front()));
    if (found == joined_.end() || found->second == checking::ChainOutcome::integers) return false;
    const bool wrong = found->second == checking::ChainOutcome::wrong;
    checked.precision = "float32";
    checked.verdict = wrong ? Verdict::refused : Verdict::falls_back;
    checked.rule = wrong
                       ? "OpenVINO 2026.4.1 joins layers of at most 8 rows, and computes them wrongly: one has a zero "
                         "point and no bias"
                       : "OpenVINO 2026.4.1 makes one float kernel of layers of at most 8 rows";
    checked.suggestion = "three axes for every second one: quantize with this target";
    return true;
  }

  // Of an operator that no row names, ONNX Runtime's and OpenVINO's CPU kernels compute in float.
  void judge_unknown(const onnx::Node& node, const Signature& forms, CheckedNode& checked) const {
    const bool on_this_cpu = target_.is_ort_cpu || target_.name == "openvino";
    const auto read =
        node.inputs().empty() ? onnx::DataType::undefined : graph::type_of(model_, types_, node.inputs().front());
    if (on_this_cpu && (read == onnx::DataType::int8 || read == onnx::DataType::uint8)) {
      checked.precision = "int8";
      checked.rule = "it is an operator on integers";
      return;
    }
    checked.precision = "float32";
    checked.on_cpu = !on_this_cpu;
    if (checked.on_cpu || is_quantized(forms)) checked.verdict = Verdict::falls_back;
    checked.rule = fmt::format("the table has no {} {}", node.op_type(), described(forms));
  }

  void add(std::size_t position, CheckedNode checked) {
    if (checked.verdict == Verdict::accepted) ++result_.accepted;
    if (checked.verdict == Verdict::falls_back) ++result_.falls_back;
    if (checked.verdict == Verdict::refused) ++result_.refused;
    if (!checked.macs) {
      result_.macs.reset();
      result_.integer_macs.reset();
    } else if (result_.macs) {
      *result_.macs += *checked.macs;
      if (checked.precision.starts_with("int") && checked.verdict == Verdict::accepted)
        *result_.integer_macs += *checked.macs;
    }
    places_[position] = result_.nodes.size();
    result_.nodes.push_back(std::move(checked));
  }

  // Of a node that was judged: pairs are not.
  std::optional<bool> runs_on_target(std::size_t position) const {
    const auto known = places_.find(position);
    if (known == places_.end()) return std::nullopt;
    const auto& node = result_.nodes[known->second];
    return !node.on_cpu && node.verdict != Verdict::refused;
  }

  // A part begins where a node of the target reads, on any path, what the CPU made of an earlier part.
  void count_partitions() {
    std::vector<std::size_t> part(model_.graph.nodes.size());
    std::vector<bool> on_target(model_.graph.nodes.size());
    std::size_t parts = 0;
    for (std::size_t n = 0; n < part.size(); ++n) {
      const auto known = runs_on_target(n);
      std::size_t latest = 0;
      bool after_cpu = false;
      for (const auto& value : model_.graph.nodes[n].inputs()) {
        const int maker = index_.producer(value);
        if (maker == graph::kNone) continue;
        const auto m = static_cast<std::size_t>(maker);
        if (part[m] > latest) after_cpu = false;
        if (part[m] >= latest && part[m] > 0) after_cpu = after_cpu || !on_target[m];
        latest = std::max(latest, part[m]);
      }
      // Pairs belong to what made their input.
      on_target[n] = known.value_or(latest == 0 || !after_cpu);
      part[n] = latest;
      if (!known.value_or(false)) continue;
      part[n] = latest == 0 || after_cpu ? latest + 1 : latest;
      parts = std::max(parts, part[n]);
    }
    result_.partitions = parts;
  }

  const config::Target& target_;
  checking::Table own_table_;
  const checking::Table* table_;
  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  graph::Index index_;
  bool static_shapes_;
  std::unordered_map<int, checking::ChainOutcome> joined_;  // in OpenVINO, by position
  std::map<std::size_t, std::size_t> places_;               // of nodes in the result
  CheckResult result_;
};

// A file as check_model() takes it: constants are initializers, and nodes are in order.
onnx::Model model_to_check(const std::filesystem::path& file) {
  auto model = onnx::read_model(file);
  graph::lift_constants(model);
  graph::sort_topologically(model);
  return model;
}

CheckResult check_within_time(const CheckOptions& options) {
  if (const auto named = run::with_named_target(options)) {
    auto result = check_within_time(*named);
    if (!named->notes.empty()) result.target_reason = named->notes.front();
    return result;
  }
  (void)config::target(options.config);
  onnx::Model model = model_to_check(run::model_file(options.model));
  if (!options.config.input_shapes.empty()) graph::fix_input_shapes(model, options.config.input_shapes);
  graph::require_room(model, options.resources.memory_budget);
  const exec::Runtime runtime(options.runtime);
  return pipeline::check_model(options.config.target, model, runtime, {}, options.stop);
}

}  // namespace

CheckResult pipeline::check_model(const std::string& target, const onnx::Model& model, const graph::ValueTypes& types) {
  Options options;
  options.config.target = target;
  return Check(options, model, types).run();
}

CheckResult check(const CheckOptions& options) { return run::within_time(options, check_within_time); }

}  // namespace detent

namespace detent::pipeline {
namespace {

constexpr std::size_t kMostLines = 4;

std::vector<std::string> lines_of(const CheckResult& result) {
  std::vector<std::string> lines{checking::headline(result)};
  std::map<std::pair<Verdict, std::string>, std::vector<const CheckedNode*>> alike;
  for (const auto& node : result.nodes) {
    if (node.verdict != Verdict::accepted) alike[{node.verdict, node.rule}].push_back(&node);
  }
  for (const auto& [key, nodes] : alike) {
    if (lines.size() > kMostLines) {
      const auto& file = config::target(result.target).file;
      lines.push_back(fmt::format("{}: detent check --target {} tells the other nodes", result.target,
                                  file.empty() ? result.target : file.string()));
      break;
    }
    const auto more = nodes.size() == 1 ? "" : fmt::format(" and {} more", nodes.size() - 1);
    const auto* what = key.first == Verdict::refused ? "refused"
                       : nodes.front()->on_cpu       ? "left to the CPU"
                                                     : "in float";
    lines.push_back(fmt::format("{}: {} '{}'{}: {}, {}", result.target, nodes.front()->op_type, nodes.front()->name,
                                more, what, key.second));
  }
  return lines;
}

// What scales follow from, with nothing in it: the weights are not read.
quantization::ConstantScan empty_scan(const onnx::Tensor& tensor, const quantization::Mark& mark) {
  std::size_t slices = 1;
  if (mark.granularity.kind == quantization::Granularity::Kind::axis)
    slices = static_cast<std::size_t>(tensor.dims.at(mark.granularity.axis));
  return {std::vector<calibration::KeyRange>(slices), std::vector<float>(slices)};
}

// Operators of block floats leave the shape and the type as they are.
onnx::Model without_block_floats(onnx::Model model) {
  for (auto& node : model.graph.nodes) {
    if (node.domain() == onnx::kQuarkDomain)
      node = onnx::Node("Identity", node.name(), {node.inputs().front()}, node.outputs());
  }
  return model;
}

graph::ValueTypes types_of(const exec::PortsOf& ports_of, const onnx::Model& model, const Shapes& shapes) {
  auto simple = without_block_floats(model);
  const auto low = run::find_16_bit_floats(simple);
  if (low.brain) graph::relabel_bfloat16_as_float16(simple);
  auto types = exec::infer_value_types(ports_of, simple, shapes);
  if (!low.brain || low.half) return types;
  for (auto& [name, value] : types) {
    if (value.type == onnx::DataType::float16) value.type = onnx::DataType::bfloat16;
  }
  return types;
}

// The user's model has been loaded before: that the runtime dies of this one is no fault of that.
TargetNotes notes_of(const QuantizeOptions& options, const onnx::Model& model, const exec::Runtime& runtime,
                     const Shapes& shapes) {
  const auto& target = options.config.target;
  CheckResult result;
  try {
    result = check_model(target, model, runtime, shapes, options.stop);
  } catch (const exec::SessionDied& e) {
    throw device_error(
        fmt::format("what target '{}' makes of the quantized model cannot be told, so nothing was written: {}", target,
                    e.what()),
        e.hint());
  }
  TargetNotes told{lines_of(result), {}};
  if (result.macs && *result.macs > 0)
    told.integer_macs = static_cast<double>(*result.integer_macs) / static_cast<double>(*result.macs);
  return told;
}

}  // namespace

CheckResult check_model(const std::string& target, const onnx::Model& model, const exec::Runtime& runtime,
                        const Shapes& shapes, const std::stop_token& stop) {
  const auto ports_of = exec::guarded_ports(runtime, {.stop = stop});
  auto result = check_model(target, model, types_of(ports_of, model, {}));
  if (result.macs || shapes.empty()) return result;
  const auto counted = check_model(target, model, types_of(ports_of, model, shapes));
  result.macs = counted.macs;
  result.integer_macs = counted.integer_macs;
  return result;
}

TargetNotes target_notes(const QuantizeOptions& options, const std::filesystem::path& quantized,
                         const exec::Runtime& runtime, const Shapes& shapes) {
  if (config::target(options.config).is_ort_cpu) return {};
  auto model = model_to_check(quantized);
  model.path = options.output;
  return notes_of(options, model, runtime, shapes);
}

std::optional<double> integers_on_cpu(const QuantizeOptions& options, onnx::Model model, const exec::Runtime& runtime,
                                      const Shapes& shapes) {
  graph::lift_constants(model);
  graph::sort_topologically(model);
  return notes_of(options, model, runtime, shapes).integer_macs;
}

TargetNotes target_notes(const QuantizeOptions& options, const onnx::Model& model,
                         const quantization::Placement& placement, const exec::Runtime& runtime) {
  const auto& config = options.config;
  if (config::target(config).is_ort_cpu) return {};
  quantization::Proposals proposals;
  for (const auto& value : placement.to_observe()) proposals.ranges[value] = {{-1.0F, 1.0F}, "minmax"};
  for (const auto& tensor : model.graph.initializers) {
    const auto* mark = placement.find(tensor.name);
    if (mark != nullptr) proposals.constants[tensor.name] = empty_scan(tensor, *mark);
  }
  const auto assignment = quantization::assign(model, placement, proposals, config);
  return notes_of(options, quantization::emit_qdq({model}, assignment).model, runtime, {});
}

}  // namespace detent::pipeline
