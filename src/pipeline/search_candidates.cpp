#include "pipeline/search_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "config/presets.h"
#include "detent/progress.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "pipeline/block_drafts.h"
#include "pipeline/stages/formats.h"
#include "pipeline/stages/integers.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/value_kinds.h"
#include "remedies/evaluator.h"
#include "run/model/format_choice.h"
#include "solve/sweep/block_weights.h"
#include "speed/kernels.h"

namespace detent::pipeline {

namespace {

using config::NodeFormat;
using graph::Trait;

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
  blocks.method = WeightMethod::nearest;
  return quantization::emit_blocks({draft.model}, draft.assignment(blocks, 1, std::move(stop))).model;
}

QuantConfig widened(QuantConfig config) {
  config.activation_type = QuantType::uint16;
  return config;
}

// Times of operators, from the kernel table or measured now and added to it.
class FormatTimes {
 public:
  // `subject.config` is that of static int8. What is given must outlive this.
  FormatTimes(const speed::TimedModel& subject, const exec::Runtime& runtime, std::filesystem::path directory,
              const std::optional<std::filesystem::path>& table, std::stop_token stop)
      : subject_(subject),
        wide_(widened(subject.config)),
        wide_subject_{subject.model, subject.index, subject.types, wide_},
        runtime_(runtime),
        directory_(std::move(directory)),
        file_(table),
        stop_(std::move(stop)),
        table_(run::open_kernel_table(table, runtime.version(), notes_)) {}

  FormatTimes(const FormatTimes&) = delete;
  FormatTimes& operator=(const FormatTimes&) = delete;

  // From now on what the table lacks is an error: throws bad_input.
  void measure_none() { measures_ = false; }

  // Of float32 and static int8, with conversions apart; null: the operator cannot be timed, and counts as free.
  const speed::KernelTimes* times(std::size_t node) {
    const auto kernel = speed::kernel_table_key(subject_, node);
    if (kernel.empty()) return nullptr;
    if (table_.find(kernel) == nullptr) {
      check_may_measure(kernel, node);
      complete_ = false;
      table_.add(kernel, speed::time_kernel(subject_, node, runtime_, directory_, stop_));
    }
    return table_.find(kernel);
  }

  // Seconds of a format that brings its own conversions: a16w8, int8-dynamic, q8, q4, q2.
  double seconds(std::size_t node, NodeFormat format) {
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

  // Adds what was measured to the file. Gives back notes.
  std::vector<std::string> save() {
    if (!complete_) run::save_kernel_table(table_, file_, stop_, notes_);
    return notes_;
  }

 private:
  void check_may_measure(const std::string& kernel, std::size_t node) const {
    if (measures_) return;
    throw bad_input(fmt::format("the kernel table '{}' has no times of {} ('{}')", file_->string(),
                                subject_.model.graph.nodes[node].label(), kernel),
                    "search this model on that machine with --set kernel-table=FILE, and bring FILE here");
  }

  speed::KernelTimes measured(const std::string& kernel, std::size_t node, NodeFormat format) {
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

  const speed::TimedModel& subject_;
  QuantConfig wide_;
  speed::TimedModel wide_subject_;
  const exec::Runtime& runtime_;
  std::filesystem::path directory_;
  std::optional<std::filesystem::path> file_;
  std::stop_token stop_;
  std::vector<std::string> notes_;
  speed::KernelTable table_;
  bool complete_ = true;
  bool measures_ = true;
};

constexpr double kWide = 1.0 / 65025;      // of the error of 8 bits, that 16 leave
constexpr double kAsManyAsColumns = 1e-9;  // errors of weights that 8 bits hold exactly

struct Blocks {
  quantization::BlockTensor tensor;
  solve::BitErrors errors;
};

class Finder {
 public:
  Finder(Run& run, const std::vector<NodeFormat>& formats)
      : run_(run), options_(run.options), draft_(run.integers->draft), formats_(formats) {}

  Candidates run(const std::vector<std::filesystem::path>& tables) {
    found_.whole.bytes = static_cast<double>(run_.result.model_bytes_before);
    found_.samples = run_.result.samples;
    found_.notes = run_.result.notes;
    measure_errors();
    find_layers();
    find_costs();
    auto layers = found_.problem.layers;
    find_borders(found_.problem);
    for (const auto& table : tables) found_.elsewhere.push_back(problem_of(table, layers));
    return std::move(found_);
  }

 private:
  const onnx::Model& model() const { return draft_.prepared.model; }
  const std::vector<onnx::Node>& nodes() const { return model().graph.nodes; }

  void measure_errors() {
    auto& evaluator = run_.integers->evaluator;
    if (!evaluator || draft_.assignment.placement.marks.empty()) return;
    errors_ = draft_.sensitivities ? *draft_.sensitivities : evaluator->measure(draft_);
    found_.inferences = 2 * found_.samples + 2 * errors_.samples * (errors_.each_alone ? errors_.values.size() : 2);
    types_ = evaluator->static_types(draft_);
  }

  // Products and tables that have a choice, and operators that pass integers from one of them to another.
  void find_layers() {
    index_.emplace(model());
    possible_ = run::possible_formats(draft_.prepared, options_.config);
    layer_of_.assign(nodes().size(), kNoLayer);
    for (std::size_t n = 0; n < nodes().size(); ++n) {
      const bool has_weights = graph::is_product(nodes()[n]) || quantization::is_table(nodes()[n], *index_) ||
                               graph::is_recurrent(nodes()[n]);
      SearchLayer layer;
      if (has_weights) {
        layer.node = nodes()[n].id();
        for (const auto format : formats_) {
          if (possible_[n].contains(format)) layer.formats.push_back(format);
        }
      } else if (graph::has_trait(nodes()[n], Trait::carries_integers) && draft_.assignment.placement.selected[n]) {
        layer.formats = {NodeFormat::fp32, NodeFormat::int8};
      }
      if (layer.formats.empty()) continue;
      layer_of_[n] = found_.layers.size();
      nodes_.push_back(n);
      found_.layers.push_back(std::move(layer));
    }
  }

  void find_costs() {
    const auto scope = run_.profiler.scope("Times of formats");
    const auto subject = this->subject();
    FormatTimes times(subject, *run_.runtime, run_.work->scratch(), options_.kernel_table, options_.stop);
    for (std::size_t l = 0; l < found_.layers.size(); ++l) {
      auto& layer = found_.layers[l];
      kernels_.push_back(times_of(times, nodes_[l]));
      auto& costs = found_.problem.layers.emplace_back();
      const auto formats = std::exchange(layer.formats, {});
      for (const auto format : formats) {
        try {
          costs.push_back(costs_of(times, l, format));
          layer.formats.push_back(format);
        } catch (const Error& e) {
          if (e.kind() != ErrorKind::device) throw;  // the runtime has no such kernel
          found_.notes.push_back(
              fmt::format("{} is not tried as {}: {}", nodes()[nodes_[l]].label(), config::name_of(format), e.what()));
        }
      }
      if (options_.progress) options_.progress("kernels", l + 1, found_.layers.size());
    }
    for (const auto& kernel : kernels_) found_.whole.seconds += kernel.in_float;
    for (auto& note : times.save()) found_.notes.push_back(std::move(note));
  }

  speed::TimedModel subject() const {
    return {model(), *index_, has_errors() ? types_ : draft_.prepared.types, options_.config};
  }

  // Errors and bytes are the same on all machines.
  searching::Problem problem_of(const std::filesystem::path& table, std::vector<std::vector<searching::Costs>> layers) {
    const auto subject = this->subject();
    FormatTimes times(subject, *run_.runtime, run_.work->scratch(), table, options_.stop);
    times.measure_none();
    for (std::size_t l = 0; l < layers.size(); ++l) {
      kernels_[l] = times_of(times, nodes_[l]);
      for (std::size_t f = 0; f < layers[l].size(); ++f)
        layers[l][f].seconds = seconds_of(times, l, found_.layers[l].formats[f]);
    }
    searching::Problem problem{std::move(layers), {}};
    find_borders(problem);
    return problem;
  }

  static speed::KernelTimes times_of(FormatTimes& times, std::size_t node) {
    const auto* known = times.times(node);
    return known != nullptr ? *known : speed::KernelTimes{};
  }

  searching::Costs costs_of(FormatTimes& times, std::size_t l, NodeFormat format) {
    return {error_of(nodes_[l], format), seconds_of(times, l, format), bytes_of(nodes_[l], format)};
  }

  double seconds_of(FormatTimes& times, std::size_t l, NodeFormat format) const {
    if (format == NodeFormat::fp32 || format == NodeFormat::w8) return kernels_[l].in_float;
    if (format == NodeFormat::int8) return kernels_[l].in_integers;
    return times.seconds(nodes_[l], format);
  }

  // Of a value rounded alone at the worst output, shared out among those who read its integers.
  double error_of_value(const std::string& value) const {
    const auto* mark = draft_.assignment.placement.find(value);
    if (mark == nullptr) return 0;
    const auto found = errors_.errors.find(value);
    if (found == errors_.errors.end()) return 0;
    double readers = 0;
    for (const int reader : index_->consumers(value)) {
      if (draft_.assignment.placement.selected[static_cast<std::size_t>(reader)]) readers += 1;
    }
    return remedies::worst_of(found->second) / std::max(readers, 1.0);
  }

  double error_of(std::size_t n, NodeFormat format) {
    if (format == NodeFormat::fp32) return 0;
    if (graph::is_recurrent(nodes()[n])) return error_as_deployed(n, format);
    double activations = 0, weights = 0;
    for (const auto& value : nodes()[n].inputs()) {
      if (value.empty()) continue;
      (index_->initializer(value) == graph::kNone ? activations : weights) += error_of_value(value);
    }
    if (format == NodeFormat::w8) return weights;
    if (format == NodeFormat::a16w8) return weights + kWide * activations;
    const int bits = config::block_bits(format);
    if (bits == 0) return weights + activations;
    const auto* blocks = blocks_of(n);
    return blocks == nullptr
               ? 0
               : weights * blocks->errors.of_bits.at(bits) / std::max(blocks->errors.nearest, kAsManyAsColumns);
  }

  // No trial rounds as recurrent layers do.
  double error_as_deployed(std::size_t n, NodeFormat format) {
    QuantizeResult told;
    const auto model =
        mixture(run_, {fmt::format("{}={}", run::entry_of(nodes()[n].id()), config::name_of(format))}, told);
    const auto found = run_.integers->evaluator->deployed(model);
    found_.inferences += 2 * found.samples;
    return std::pow(10, -found.sqnr_db / 10);
  }

  // The node's weight, with the errors of its values in blocks and in 8 bits for each channel.
  const Blocks* blocks_of(std::size_t n) {
    const auto& value = nodes()[n].inputs()[graph::is_product(nodes()[n]) ? 1 : 0];
    const auto known = blocks_.find(value);
    if (known != blocks_.end()) return known->second ? &*known->second : nullptr;
    auto& found = blocks_[value];
    WeightsOnlyConfig config;
    config.enabled = true;
    config.bits = WeightBits::eight;
    auto one = options_.config;
    one.nodes = {run::entry_of(nodes()[n].id())};
    const auto placement = quantization::place_blocks(model(), one, config);
    if (placement.tensors.empty()) return nullptr;
    constexpr std::array kBits{8, 4, 2};
    auto tensor = placement.tensors.front();
    const auto& initializer = model().graph.initializers[tensor.initializer];
    const auto threads = thread_count(options_.threads);
    auto errors = solve::bit_errors(initializer, tensor, kBits, WeightMethod::search, threads);
    tensor.format.block = 0;
    constexpr std::array kChannels{8};
    errors.nearest = solve::bit_errors(initializer, tensor, kChannels, WeightMethod::nearest, threads).nearest;
    found = Blocks{std::move(tensor), std::move(errors)};
    return &*found;
  }

  // Of all constants that the node reads, beside none of them: 0 where it stays in float, so that costs count what a
  // format saves.
  double bytes_of(std::size_t n, NodeFormat format) {
    double all = 0;
    for (const auto& value : nodes()[n].inputs()) {
      const int at = value.empty() ? graph::kNone : index_->initializer(value);
      if (at == graph::kNone) continue;
      const auto& tensor = model().graph.initializers[static_cast<std::size_t>(at)];
      const double bytes = static_cast<double>(tensor.data.size()) /
                           static_cast<double>(std::max<std::size_t>(index_->consumers(value).size(), 1));
      const bool is_weight = tensor.dims.size() > 1;
      const int bits = config::block_bits(format);
      if (!is_weight || format == NodeFormat::fp32) {
        all += bytes;
      } else if (bits == 0) {
        all += bytes / 4;
      } else {
        constexpr double kBlock = 32;
        all += bytes / 32 * bits + bytes / 4 / kBlock * (4 + bits / 8.0);
      }
    }
    return all;
  }

  bool on_integers(std::size_t l, std::size_t form) const {
    return l != kNoLayer && found_.layers[l].formats[form] == NodeFormat::int8;
  }

  double elements(const std::string& value) const {
    const auto bytes = graph::static_bytes(types_, value);
    return bytes ? static_cast<double>(*bytes) / sizeof(float) : 0;
  }

  double share(std::span<const std::string> values, const std::string& value) const {
    double all = 0;
    for (const auto& other : values) {
      if (!other.empty() && index_->initializer(other) == graph::kNone) all += elements(other);
    }
    return all > 0 ? elements(value) / all : 0;
  }

  void find_borders(searching::Problem& problem) {
    if (!has_errors()) return;
    for (std::size_t n = 0; n < nodes().size(); ++n) {
      for (const auto& value : nodes()[n].outputs()) add_value(problem, value, layer_of_[n], n);
    }
    for (const auto& input : model().graph.inputs) add_value(problem, input.name, kNoLayer, 0);
  }

  // Conversions of a value: where integers are made of it, once for all that read them; where floats are made of
  // integers, for each reader.
  void add_value(searching::Problem& problem, const std::string& value, std::size_t from, std::size_t producer) {
    if (value.empty() || draft_.assignment.placement.find(value) == nullptr) return;
    const auto readers = index_->consumers(value);
    double on_integers = 0;
    for (const int reader : readers) on_integers += layer_of_[static_cast<std::size_t>(reader)] != kNoLayer ? 1 : 0;
    double dequantize = 0, out_of_blocks = 0;
    if (from != kNoLayer && !graph::is_matrix_product(nodes()[producer])) {
      const double part = share(nodes()[producer].outputs(), value);
      dequantize = part * kernels_[from].dequantize;
      out_of_blocks = part * kernels_[from].out_of_blocks;
    }
    for (const int reader : readers) {
      const auto to = layer_of_[static_cast<std::size_t>(reader)];
      const double part = share(nodes()[static_cast<std::size_t>(reader)].inputs(), value);
      const double quantize = to == kNoLayer ? 0 : part * kernels_[to].quantize / std::max(on_integers, 1.0);
      const double into_blocks = to == kNoLayer ? 0 : part * kernels_[to].into_blocks;
      add_border(problem, from, to, {quantize + out_of_blocks, dequantize + into_blocks, into_blocks, out_of_blocks});
    }
    if (index_->is_output(value)) add_border(problem, from, kNoLayer, {0, dequantize, 0, out_of_blocks});
  }

  // Seconds where integers are made of floats, and floats of integers; and in float, where there is no layer before or
  // behind.
  struct Conversions {
    double to_integers, to_float, from_others, to_others;
  };

  void add_border(searching::Problem& problem, std::size_t from, std::size_t to, const Conversions& seconds) const {
    const auto of = [&](bool maker, bool reader) {
      if (maker == reader) return 0.0;
      return reader ? seconds.to_integers : seconds.to_float;
    };
    auto& layers = problem.layers;
    if (from == kNoLayer && to == kNoLayer) return;
    if (from == kNoLayer) {
      for (std::size_t f = 0; f < layers[to].size(); ++f)
        layers[to][f].seconds += on_integers(to, f) ? seconds.to_integers : seconds.from_others;
    } else if (to == kNoLayer) {
      for (std::size_t f = 0; f < layers[from].size(); ++f)
        layers[from][f].seconds += on_integers(from, f) ? seconds.to_float : seconds.to_others;
    } else {
      searching::Border border{from, to, {}};
      for (std::size_t a = 0; a < layers[from].size(); ++a) {
        auto& row = border.seconds.emplace_back();
        for (std::size_t b = 0; b < layers[to].size(); ++b) row.push_back(of(on_integers(from, a), on_integers(to, b)));
      }
      problem.borders.push_back(std::move(border));
    }
  }

  static constexpr std::size_t kNoLayer = static_cast<std::size_t>(-1);

  bool has_errors() const { return !errors_.values.empty(); }

  Run& run_;
  const QuantizeOptions& options_;
  const remedies::Draft& draft_;
  const std::vector<NodeFormat>& formats_;
  Candidates found_;
  remedies::Sensitivities errors_;
  graph::ValueTypes types_;  // with the shapes of the first sample
  std::optional<graph::Index> index_;
  run::PossibleFormats possible_;
  std::vector<std::size_t> layer_of_;  // by node
  std::vector<std::size_t> nodes_;     // by layer
  std::vector<speed::KernelTimes> kernels_;
  std::map<std::string, std::optional<Blocks>> blocks_;
};

}  // namespace

std::size_t Candidates::count() const {
  std::size_t sum = 0;
  for (const auto& layer : layers) sum += layer.node.empty() ? 0 : layer.formats.size();
  return sum;
}

std::vector<std::string> Candidates::node_formats(const searching::Choice& choice) const {
  std::vector<std::string> entries;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].node.empty()) continue;
    const auto format = layers[l].formats[choice[l]];
    if (format != NodeFormat::fp32)
      entries.push_back(fmt::format("{}={}", run::entry_of(layers[l].node), config::name_of(format)));
  }
  return entries;
}

searching::Choice Candidates::all_in(NodeFormat format) const {
  searching::Choice choice;
  for (const auto& layer : layers) {
    const auto at = [&](NodeFormat wanted) { return std::find(layer.formats.begin(), layer.formats.end(), wanted); };
    const auto found = at(format) == layer.formats.end() ? at(NodeFormat::fp32) : at(format);
    choice.push_back(static_cast<std::size_t>(found == layer.formats.end() ? 0 : found - layer.formats.begin()));
  }
  return choice;
}

Candidates find_candidates(Run& run, const std::vector<NodeFormat>& formats,
                           const std::vector<std::filesystem::path>& tables) {
  return Finder(run, formats).run(tables);
}

namespace {

std::vector<std::string> faster_in_float(Run& run) {
  auto options = run.options;  // of mixtures, whose formats are given
  options.config.formats_given = false;
  options.optimize_for = QuantizeOptions().optimize_for;
  if (!config::chooses_by_speed(options)) return {};
  auto prepared = run.integers->draft.prepared;
  auto placement = run.integers->draft.assignment.placement;
  return run::choose_by_speed(prepared, placement, options, *run.runtime, run.integers->source.get(), run.work->path(),
                              run.work->scratch())
      .in_float;
}

// With weights of 8 bits, where they can have them.
void leave_in_float(const Candidates& candidates, const std::vector<std::string>& nodes, searching::Choice& choice) {
  const std::set<std::string> left(nodes.begin(), nodes.end());
  const auto in_float = candidates.all_in(NodeFormat::w8);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (left.contains(candidates.layers[l].node)) choice[l] = in_float[l];
  }
}

// As quantize() writes it: what cannot have the format has weights of 8 bits as well.
void store_others(const Candidates& candidates, searching::Choice& choice) {
  const auto in_float = candidates.all_in(NodeFormat::fp32), stored = candidates.all_in(NodeFormat::w8);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (choice[l] == in_float[l]) choice[l] = stored[l];
  }
}

// Recurrent layers have integers with dynamic scales alone; those stay in float that do harm by themselves.
void add_recurrent(const Candidates& candidates, searching::Choice& choice) {
  constexpr double kHarm = 1e-2;  // noise / signal at the worst output
  const auto in_float = candidates.all_in(NodeFormat::fp32);
  const auto fixed = candidates.all_in(NodeFormat::int8), dynamic = candidates.all_in(NodeFormat::dynamic);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (fixed[l] != in_float[l] || dynamic[l] == in_float[l]) continue;
    if (candidates.problem.layers[l][dynamic[l]].error <= kHarm) choice[l] = dynamic[l];
  }
}

}  // namespace

std::vector<SingleFormat> single_formats(Run& run, const Candidates& candidates, std::span<const NodeFormat> formats) {
  std::vector<SingleFormat> all;
  for (const auto format : formats) {
    if (format == NodeFormat::fp32) continue;
    SingleFormat single{std::string(config::name_of(format)), format, candidates.all_in(format)};
    single.runs_alone = config::is_static(format);
    if (format == NodeFormat::dynamic) store_others(candidates, single.choice);
    if (format == NodeFormat::int8 && run.integers) {
      auto for_size = single;
      for_size.name = kInt8ForSize;
      add_recurrent(candidates, for_size.choice);
      store_others(candidates, for_size.choice);
      single.choice = for_size.choice;
      leave_in_float(candidates, faster_in_float(run), single.choice);
      all.push_back(std::move(single));
      all.push_back(std::move(for_size));
    } else {
      all.push_back(std::move(single));
    }
  }
  return all;
}

}  // namespace detent::pipeline
