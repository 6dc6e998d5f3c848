#include "run/model/proposals.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "calibration/statistics_file.h"
#include "config/presets.h"
#include "graph/traits.h"
#include "quantization/formats.h"
#include "quantization/placement/value_kinds.h"
#include "run/files/run_directory.h"

namespace detent::run {
namespace {

// AccuracyConfig::other_methods that these statistics suffice for.
std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options,
                                             const calibration::Statistics& statistics) {
  std::vector<CalibrationMethod> methods = options.accuracy.other_methods;
  std::erase_if(methods, [&](CalibrationMethod method) {
    return method == options.method.method ||
           (calibration::method_of(method).needs_histogram && !statistics.has_histograms);
  });
  return methods;
}

}  // namespace

quantization::RangeOptions range_options(const QuantizeOptions& options) {
  return {options.method, options.overrides, thread_count(options.threads)};
}

calibration::Statistics saved_statistics(const QuantizeOptions& options, const Fingerprint& model,
                                         data::SampleSource* source) {
  auto statistics = calibration::read_statistics(*options.statistics);
  const std::string where = fmt::format("statistics '{}'", options.statistics->string());
  if (statistics.model != model) {
    throw bad_input(fmt::format("{} were made from another model ('{}', fingerprint {}) than '{}' ({})", where,
                                statistics.model_name, statistics.model.text(), options.model.string(), model.text()),
                    "calibrate this model");
  }
  if (source != nullptr && fingerprint_of(*source) != statistics.data) {
    throw bad_input(
        fmt::format("{} were made from other samples than {}", where,
                    options.calibration_data ? "'" + options.calibration_data->string() + "'" : "those given"),
        "calibrate again, with the same --samples and --batch-size");
  }
  return statistics;
}

quantization::Proposals propose(const Prepared& prepared, const quantization::Placement& placement,
                                const calibration::Statistics& statistics, const QuantizeOptions& options,
                                const exec::Runtime& runtime) {
  const auto& accuracy = options.accuracy;
  auto by = range_options(options);
  if (config::preset(options.config).consumer_functions) {
    const quantization::GateNames no_gates;
    const auto in_float = place_qdq_pairs(prepared, options.config, {}, &no_gates);
    by.consumer_functions = consumer_functions(prepared.model, prepared.types, in_float, runtime);
  }
  by.known = quantization::mask_ranges(prepared.model, placement, statistics);
  quantization::Proposals proposals;
  proposals.ranges = quantization::find_ranges(placement, statistics, options.config, by);
  if (config::may_measure_accuracy(options) && accuracy.sensitivity == SensitivityMode::automatic &&
      config::has_samples(options)) {
    for (const auto method : other_methods(options, statistics)) {
      auto other = by;
      other.method.method = method;
      proposals.others.emplace_back(method, quantization::find_ranges(placement, statistics, options.config, other));
    }
  }
  if (accuracy.fallback == AccuracyFallback::int16 || options.config.formats_given) {
    QuantConfig wide = options.config;
    wide.activation_type = quantization::with_16_bits(wide.activation_type);
    proposals.wide = quantization::find_ranges(placement, statistics, wide, by);
  }
  return proposals;
}

namespace {

constexpr std::size_t kMostNodes = 16;

// The nodes between a value and the only one that they make of it.
struct Stretch {
  std::string value;
  std::vector<int> nodes;
  std::string end;
};

class Stretches {
 public:
  Stretches(const onnx::Model& model, const graph::Index& index, const quantization::Placement& placement)
      : model_(model), index_(index) {
    for (const auto& mark : placement.marks) marked_.insert(mark.value);
  }

  std::optional<Stretch> behind(const std::string& value) const {
    Stretch stretch{value, {}, {}};
    std::set<std::string> inside{value};
    const auto readers = index_.consumers(value);
    std::set<int> pending(readers.begin(), readers.end());
    while (!pending.empty()) {  // in topological order, so that all that a node may read has been decided
      const int n = *pending.begin();
      pending.erase(pending.begin());
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(n)];
      if (!graph::has_trait(node, graph::Trait::has_response) || !reads_only(node, inside)) continue;
      if (stretch.nodes.size() == kMostNodes) return std::nullopt;
      stretch.nodes.push_back(n);
      const auto& made = node.outputs().front();
      inside.insert(made);
      if (marked_.contains(made)) continue;
      const auto next = index_.consumers(made);
      pending.insert(next.begin(), next.end());
    }
    for (const auto& made : inside) {
      if (!leaves(made, stretch.nodes) && !(made != value && marked_.contains(made))) continue;
      if (made == value || !stretch.end.empty() || index_.consumers(made).empty()) return std::nullopt;
      stretch.end = made;
    }
    return stretch.end.empty() ? std::nullopt : std::make_optional(std::move(stretch));
  }

 private:
  bool reads_only(const onnx::Node& node, const std::set<std::string>& inside) const {
    return std::all_of(node.inputs().begin(), node.inputs().end(), [&](const auto& input) {
      if (input.empty() || inside.contains(input)) return true;
      const int constant = index_.initializer(input);
      return constant != graph::kNone && model_.graph.initializers[static_cast<std::size_t>(constant)].count() == 1;
    });
  }

  bool leaves(const std::string& value, const std::vector<int>& nodes) const {
    if (index_.is_output(value) || index_.is_captured(value)) return true;
    const auto readers = index_.consumers(value);
    return !std::all_of(readers.begin(), readers.end(),
                        [&](int reader) { return std::binary_search(nodes.begin(), nodes.end(), reader); });
  }

  const onnx::Model& model_;
  const graph::Index& index_;
  std::set<std::string> marked_;
};

std::vector<Stretch> find_stretches(const onnx::Model& model, const graph::ValueTypes& types, const graph::Index& index,
                                    const quantization::Placement& placement) {
  std::set<std::string> shared;
  for (const auto& mark : placement.marks) {
    if (mark.shares) shared.insert(*mark.shares);
  }
  const Stretches stretches(model, index, placement);
  std::vector<Stretch> all;
  for (const auto& mark : placement.marks) {
    if (mark.is_constant || mark.shares || shared.contains(mark.value)) continue;
    if (graph::type_of(model, types, mark.value) != onnx::DataType::float32) continue;
    if (auto stretch = stretches.behind(mark.value)) all.push_back(std::move(*stretch));
  }
  return all;
}

// The same nodes, reading the points where functions are tabulated in place of the values.
onnx::Model on_points(const onnx::Model& model, graph::Index& index, const std::vector<Stretch>& stretches) {
  onnx::Model copy = model;
  const auto points = calibration::Response::points();
  const std::string name = index.fresh_name("points");
  copy.graph.initializers.push_back(
      onnx::make_tensor(name, onnx::DataType::float32, {static_cast<std::int64_t>(points.size())}, points));
  for (const auto& stretch : stretches) {
    for (const int n : stretch.nodes) {
      auto& node = copy.graph.nodes[static_cast<std::size_t>(n)];
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (node.inputs()[i] == stretch.value) node.set_input(i, name);
      }
    }
  }
  return copy;
}

}  // namespace

std::map<std::string, calibration::Response> consumer_functions(const onnx::Model& model,
                                                                const graph::ValueTypes& types,
                                                                const quantization::Placement& placement,
                                                                const exec::Runtime& runtime) {
  graph::Index index(model);
  const auto stretches = find_stretches(model, types, index, placement);
  if (stretches.empty()) return {};
  std::vector<int> nodes;
  for (const auto& stretch : stretches) nodes.insert(nodes.end(), stretch.nodes.begin(), stretch.nodes.end());
  std::sort(nodes.begin(), nodes.end());
  std::map<std::string, calibration::Response> all;
  for (const auto& made : exec::compute_constants(runtime, on_points(model, index, stretches), nodes)) {
    const auto stretch =
        std::find_if(stretches.begin(), stretches.end(), [&](const auto& s) { return s.end == made.name; });
    const auto* values = reinterpret_cast<const float*>(made.data.bytes().data());
    if (stretch == stretches.end() || made.type != onnx::DataType::float32) continue;
    calibration::Response response({values, values + made.count()});
    if (response.is_finite()) all.emplace(stretch->value, std::move(response));
  }
  return all;
}

}  // namespace detent::run
