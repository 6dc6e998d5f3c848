#include "run/model/format_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/presets.h"
#include "exec/guarded_session.h"
#include "graph/decisions.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "profile/meters.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/dynamic.h"
#include "quantization/placement/selection.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/weight_operators.h"
#include "run/collect.h"
#include "run/comparison/latency.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/model/speed_trials.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/shared_work.h"
#include "speed/choice.h"

namespace detent::run {
namespace {

using config::NodeFormat;

void add_static(const Prepared& prepared, QuantConfig config, PossibleFormats& possible) {
  config.formats_given = true;
  const auto placement = place_qdq_pairs(prepared, config);
  const auto& nodes = prepared.model.graph.nodes;
  const graph::Index index(prepared.model);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const bool starts = graph::is_product(nodes[n]) || quantization::is_table(nodes[n], index);
    if (!starts || !placement.selected[n]) continue;
    const auto read = static_cast<std::size_t>(graph::is_product(nodes[n]) ? 2 : 1);
    const auto& inputs = nodes[n].inputs();
    const bool marked =
        inputs.size() >= read && std::all_of(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(read),
                                             [&](const auto& value) { return placement.find(value) != nullptr; });
    if (!marked) continue;
    possible[n].insert(NodeFormat::int8);
    if (graph::is_product(nodes[n])) possible[n].insert(NodeFormat::a16w8);
  }
}

void add_dynamic(const Prepared& prepared, QuantConfig config, PossibleFormats& possible) {
  config.activations = Activations::dynamic;
  for (const auto n : quantization::dynamic_nodes(prepared.model, config)) possible[n].insert(NodeFormat::dynamic);
}

void add_blocks(const Prepared& prepared, const QuantConfig& config, PossibleFormats& possible) {
  for (const auto format : {NodeFormat::q8, NodeFormat::q4, NodeFormat::q2}) {
    WeightsOnlyConfig blocks;
    blocks.enabled = true;
    blocks.bits = static_cast<WeightBits>(config::block_bits(format));
    for (const auto& tensor : quantization::place_blocks(prepared.model, config, blocks).tensors) {
      for (const auto n : tensor.products) possible[n].insert(format);
      for (const auto n : tensor.tables) possible[n].insert(format);
    }
  }
}

void add_stored(const Prepared& prepared, const QuantConfig& config, PossibleFormats& possible) {
  const auto& nodes = prepared.model.graph.nodes;
  const auto products = quantization::products_to_store(prepared.model, config, prepared.transposed);
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (products.contains(nodes[n].id())) possible[n].insert(NodeFormat::w8);
  }
  for (const auto n : quantization::layers_to_store(prepared.model, config)) possible[n].insert(NodeFormat::w8);
}

// What an entry matches: at least one node that can have its format.
std::vector<std::size_t> nodes_for(const Prepared& prepared, const PossibleFormats& possible,
                                   const config::NodeFormatEntry& entry) {
  auto nodes = quantization::match_nodes(prepared.model, entry.pattern, "--node-formats");
  const auto first = nodes.front();
  const bool alone = !entry.pattern.starts_with('^');
  std::erase_if(nodes, [&](std::size_t n) { return !possible[n].contains(entry.format); });
  if (!nodes.empty()) return nodes;
  const auto& node = prepared.model.graph.nodes[first];
  std::vector<std::string_view> can;
  for (const auto format : possible[first]) can.push_back(config::name_of(format));
  throw usage_error(alone ? fmt::format("--node-formats: {} cannot be {}", node.label(), config::name_of(entry.format))
                          : fmt::format("--node-formats: no node that '{}' matches can be {}; the first is {}",
                                        entry.pattern, config::name_of(entry.format), node.label()),
                    can.empty()
                        ? "it has no format of its own: name layers, tables and recurrent layers with constant weights"
                        : fmt::format("it can be {}", fmt::join(can, ", ")));
}

}  // namespace

PossibleFormats possible_formats(const Prepared& prepared, const QuantConfig& config) {
  PossibleFormats possible(prepared.model.graph.nodes.size());
  add_static(prepared, config, possible);
  add_dynamic(prepared, config, possible);
  add_blocks(prepared, config, possible);
  add_stored(prepared, config, possible);
  const graph::Index index(prepared.model);
  for (std::size_t n = 0; n < possible.size(); ++n) {
    const auto& node = prepared.model.graph.nodes[n];
    const bool has_weights =
        (graph::is_product(node) && !quantization::reads_empty_weight(prepared.model, index, node)) ||
        graph::is_recurrent(node);
    if (has_weights || !possible[n].empty()) possible[n].insert(NodeFormat::fp32);
  }
  return possible;
}

std::vector<NodeFormat> given_formats(const Prepared& prepared, const PossibleFormats& possible,
                                      const std::vector<std::string>& entries) {
  std::vector<NodeFormat> formats(prepared.model.graph.nodes.size(), NodeFormat::fp32);
  for (const auto& text : entries) {
    const auto entry = config::parse_node_format(text);
    for (const auto n : nodes_for(prepared, possible, entry)) formats[n] = entry.format;
  }
  return formats;
}

std::string entry_of(const std::string& node) {
  if (!node.starts_with('^')) return node;
  std::string pattern = "^";
  for (const char c : node) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0 && c != '_') pattern += '\\';
    pattern += c;
  }
  return pattern;
}

NodesByFormat nodes_by_format(const Prepared& prepared, const PossibleFormats& possible,
                              const std::vector<NodeFormat>& formats) {
  NodesByFormat steps;
  for (std::size_t n = 0; n < formats.size(); ++n) {
    if (possible[n].empty()) continue;
    const auto name = entry_of(prepared.model.graph.nodes[n].id());
    if (const int bits = config::block_bits(formats[n]); bits != 0) {
      steps.blocks.push_back(name);
      steps.block_bits.push_back(fmt::format("{}={}", name, bits));
    } else if (formats[n] == NodeFormat::dynamic) {
      steps.dynamic.push_back(name);
    } else if (config::is_static(formats[n])) {
      steps.fixed.push_back(name);
      if (formats[n] == NodeFormat::a16w8) steps.wide.push_back(name);
    } else {
      if (possible[n].contains(NodeFormat::int8)) steps.in_float.push_back(name);
      if (formats[n] == NodeFormat::w8) steps.stored.insert(prepared.model.graph.nodes[n].id());
    }
  }
  return steps;
}

namespace fs = std::filesystem;

namespace {

using Decision = speed::ModelChoice;

constexpr const char* kChoice = "choice";

// What an interrupted run decided: the table may have been removed since.
std::optional<Decision> decided(const fs::path& file) {
  if (!paths::exists(file)) return std::nullopt;
  const auto json = parse_sealed_json(read_small_file(file, "the choice"));
  if (!json || !json->contains(kChoice) || !json->at(kChoice).is_string()) return std::nullopt;
  return speed::choice_of(json->at(kChoice).get<std::string>());
}

void remember(const fs::path& file, const std::string& decision) {
  AtomicFile out(file);
  const std::string text = sealed_json_text({{kChoice, decision}});
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

// Those that are tried on integers, see NodeChoice::on_integers.
std::vector<bool> recurrent(const speed::TimedModel& subject) {
  std::vector<bool> flags(subject.model.graph.nodes.size());
  if (!config::tries_recurrent(subject.config)) return flags;
  for (const auto n : quantization::recurrent_layers(subject.model, subject.config)) flags[n] = true;
  return flags;
}

// Of this process with a session as it is deployed, about: the weights, laid out anew for kernels, and some
// activations.
std::uint64_t memory_to_try(const onnx::Model& model) {
  constexpr std::uint64_t kActivations = std::uint64_t{32} << 20;
  return profile::memory_now().resident + 2 * graph::constant_bytes(model) + kActivations;
}

std::vector<std::vector<data::Array>> one_sample(data::SampleSource& source) {
  source.rewind();
  auto samples = first_samples(source, 1);
  source.rewind();
  return samples;
}

std::map<std::string, double> shares_of_time(const Decision& decision) {
  auto shares = decision.added;
  for (auto& [node, share] : shares) share /= std::max(decision.seconds, 1e-9);
  return shares;
}

// The first sample, which is at hand.
class OneSample final : public data::SampleSource {
 public:
  explicit OneSample(const std::vector<data::Array>& inputs) : inputs_(inputs) {}

  std::optional<data::Sample> next() override {
    return std::exchange(is_read_, true) ? std::nullopt : std::optional<data::Sample>({"the first sample", inputs_});
  }
  void rewind() override { is_read_ = false; }
  std::size_t sample_count() const override { return 1; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  const std::vector<data::Array>& inputs_;
  bool is_read_ = false;
};

class ChoiceBySpeed {
 public:
  ChoiceBySpeed(const Prepared& prepared, const speed::TimedModel& subject, const std::vector<bool>& candidates,
                const QuantizeOptions& options, const exec::Runtime& runtime, data::SampleSource* source,
                const fs::path& scratch, std::vector<std::string>& notes)
      : prepared_(prepared),
        subject_(subject),
        nodes_(subject.model.graph.nodes),
        candidates_(candidates),
        layers_(recurrent(subject)),
        options_(options),
        runtime_(runtime),
        source_(source),
        scratch_(scratch),
        notes_(notes),
        table_(open_kernel_table(options.kernel_table, runtime.version(), notes)),
        kernels_(nodes_.size()) {}

  Decision run() {
    time_operators();
    auto decision = decide();
    // An LSTM quantizes what it reads itself, so that its choice depends on no other.
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const auto* times = layers_[n] ? table_.find(kernels_[n]) : nullptr;
      if (times != nullptr && times->in_integers >= times->in_float) decision.in_float.push_back(nodes_[n].id());
    }
    return decision;
  }

 private:
  void time_operators() {
    bool any = false;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (candidates_[n] || layers_[n]) kernels_[n] = speed::kernel_table_key(subject_, n);
      if (candidates_[n] && kernels_[n].empty()) kernels_[n] = speed::lookup_key(subject_, n);
      any = any || !kernels_[n].empty();
      if (kernels_[n].empty() || table_.find(kernels_[n]) != nullptr) continue;
      is_complete_ = false;
      table_.add(kernels_[n], speed::time_kernel(subject_, n, runtime_, scratch_, options_.stop));
      if (options_.progress) options_.progress("kernels", n + 1, nodes_.size());
    }
    if (!any) notes_.emplace_back("operators were not timed: without samples, shapes are not known");
    if (!is_complete_) save_kernel_table(table_, options_.kernel_table, options_.stop, notes_);
  }

  // A run of one model counts for more than what its operators take alone. The times of another machine, which the user
  // gives, are taken as they are.
  bool tries_models() const {
    if (!options_.bench || source_ == nullptr || (options_.kernel_table && is_complete_)) return false;
    const auto& budget = options_.resources.memory_budget;
    const auto needed = memory_to_try(subject_.model);
    if (!budget || needed <= *budget) return true;
    notes_.push_back(fmt::format("whole models were not timed: that would take about {}, and the memory budget is {}",
                                 format_size(needed), format_size(*budget)));
    return false;
  }

  Decision decide() {
    const speed::SpeedGoal goal{options_.optimize_for, options_.size_worth};
    const speed::TimesOf times = [&](std::size_t i) { return table_.find(kernels_[i]); };
    const bool by_values = computes_by_values();
    const auto key = key_of_choice(subject_, candidates_, kernels_, goal, by_values);
    if (const auto* known = table_.find_choice(key)) return *known;
    auto faster = speed::faster_in_float(subject_, candidates_, times, goal);
    const bool tries = !faster.size_decides && faster.seconds > 0 && tries_models();
    if (tries) {
      const auto samples = one_sample(*source_);
      const auto ranges = by_values ? ranges_of(samples.front()) : calibration::Ranges();
      faster = choose_by_trials({prepared_, subject_, candidates_, options_, runtime_, samples, scratch_, ranges},
                                times, goal);
    }
    Decision decision{{}, faster.seconds, faster.seconds_on_integers, faster.seconds_in_float, faster.seconds_dynamic};
    for (const auto n : faster.nodes) decision.in_float.push_back(nodes_[n].id());
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (faster.added[n] > 0) decision.added[nodes_[n].id()] = faster.added[n];
    }
    if (tries) {
      table_.add_choice(key, decision);
      save_kernel_table(table_, options_.kernel_table, options_.stop, notes_);
      if (const auto* kept = table_.find_choice(key)) return *kept;  // another process may have been first
    }
    return decision;
  }

  // Whether how much is computed depends on values.
  bool computes_by_values() const {
    using enum graph::DecisionKind;
    const bool loops = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& node) { return node.is("Loop"); });
    return loops || !graph::find_decisions(subject_.model, prepared_.types, sizes).empty();
  }

  // With made-up ranges a loop may go on to its end, and sounds may last for hours.
  calibration::Ranges ranges_of(const std::vector<data::Array>& sample) const {
    OneSample source(sample);
    const Context context{.runtime = runtime_, .resources = {}, .directory = {}, .threads = options_.threads};
    const auto seen = collect(context, prepared_, place_qdq_pairs(prepared_, options_.config), source, {});
    calibration::Ranges ranges;
    for (const auto& [value, summary] : seen.tensors) {
      if (summary.has_values()) ranges[value] = {summary.extremes.lowest(), summary.extremes.highest()};
    }
    return ranges;
  }

  const Prepared& prepared_;
  const speed::TimedModel& subject_;
  const std::vector<onnx::Node>& nodes_;
  const std::vector<bool>& candidates_;
  const std::vector<bool> layers_;
  const QuantizeOptions& options_;
  const exec::Runtime& runtime_;
  data::SampleSource* source_;
  const fs::path& scratch_;
  std::vector<std::string>& notes_;
  speed::KernelTable table_;
  std::vector<std::string> kernels_;
  bool is_complete_ = true;
};

// Floats that nodes make and whose shapes are not known, or are told as those of scalars.
std::set<std::string> without_shape(const onnx::Model& model, const graph::ValueTypes& types) {
  std::set<std::string> values;
  for (const auto& node : model.graph.nodes) {
    for (const auto& value : node.outputs()) {
      const bool is_known = graph::told_shape(types, value) && graph::static_shape(types, value);
      if (!is_known && graph::type_of(model, types, value) == onnx::DataType::float32) values.insert(value);
    }
  }
  return values;
}

// With the shapes of the first sample. Those that the runtime does not infer from it (behind operators of other
// domains, or dependent on values) are seen in a run, where layers need them.
graph::ValueTypes types_to_time(const Prepared& prepared, const QuantizeOptions& options, const exec::Runtime& runtime,
                                data::SampleSource& source) {
  const auto& model = prepared.model;
  auto types = static_types(prepared.types, model, runtime, source);
  const auto unknown = without_shape(model, types);
  const auto reads_unknown = [&](const onnx::Node& node) {
    return (graph::is_product(node) || node.is("LSTM")) && unknown.contains(node.inputs().front());
  };
  if (std::ranges::none_of(model.graph.nodes, reads_unknown)) return types;
  const Context context{.runtime = runtime, .resources = {}, .directory = {}, .threads = options.threads};
  measure_shapes(context, model, source, {unknown.begin(), unknown.end()}, types);
  for (const auto& value : unknown) {
    auto& shape = types.at(value).shape;
    if (std::ranges::any_of(*shape, [](const auto& dim) { return dim.value == 0; })) shape.reset();  // was not made
  }
  return types;
}

// What stays in float of the products that could be integers.
struct LeftProducts {
  std::size_t count = 0, of = 0;
  std::uint64_t saved = 0;  // bytes, by weights of 8 bits
  std::uint64_t size = 0;   // of the model as it is left, about
};

LeftProducts left_products(const Prepared& prepared, const quantization::Placement& placement,
                           const graph::Index& index, const std::set<std::string>& in_float) {
  LeftProducts left;
  const auto& tensors = prepared.model.graph.initializers;
  for (const auto& tensor : tensors) left.size += tensor.data.size();
  std::set<std::string> counted_once;
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    const auto& node = prepared.model.graph.nodes[n];
    if (!placement.selected[n] || !graph::is_product(node)) continue;
    const bool stays = in_float.contains(node.id());
    ++left.of;
    left.count += stays ? 1 : 0;
    const int weight = node.inputs().size() > 1 ? index.initializer(node.inputs()[1]) : graph::kNone;
    if (weight == graph::kNone) continue;
    const auto turned = prepared.transposed.find(node.inputs()[1]);
    if (!counted_once.insert(turned == prepared.transposed.end() ? node.inputs()[1] : turned->second).second) continue;
    const auto saved = tensors[static_cast<std::size_t>(weight)].data.size() / 4 * 3;
    if (stays) {
      left.saved += saved;
    } else {
      left.size -= saved;
    }
  }
  return left;
}

// What the other choice would give: in figures where it is much.
std::string note_of(const LeftProducts& left, const Decision& decision, const QuantizeOptions& options) {
  const auto head = fmt::format("{} of {} left in float: this machine runs {} faster that way, conversions included",
                                left.count, count_with_noun(left.of, "layer"), left.count == 1 ? "it" : "them");
  if (config::tries_stored_weights(options)) return fmt::format("{}{}", head, kWeightsOf8Bits);
  if (left.saved * 40 <= left.size * 3)  // of a tenth of the bytes three quarters
    return fmt::format("{}; --optimize-for size quantizes them all the same, which saves about {}", head,
                       format_size(left.saved));
  const auto [size, smaller] = format_sizes(left.size, left.size - left.saved);
  return fmt::format(
      "{}; --optimize-for size quantizes them all the same: about {} -> {}, and {:.3g} -> {:.3g} ms a sample by the "
      "times "
      "of single operators; --set size-worth=PERCENT takes some of both",
      head, size, smaller, decision.seconds * 1e3, decision.seconds_on_integers * 1e3);
}

}  // namespace

speed::KernelTable open_kernel_table(const std::optional<fs::path>& file, const std::string& runtime_version,
                                     std::vector<std::string>& notes) {
  if (file) return speed::KernelTable(file);
  try {
    return speed::KernelTable(speed::default_kernel_table(runtime_version));
  } catch (const Error& e) {
    notes.push_back(fmt::format("{}: the times of kernels are measured anew, and not kept", e.what()));
    return speed::KernelTable(std::nullopt);
  }
}

void check_kernel_table(const std::optional<fs::path>& file) {
  if (!file) return;
  std::error_code failed;
  if (fs::exists(*file, failed)) {
    const speed::KernelTable readable(file);
    return;
  }
  auto place = *file;  // or the first of the folders that are made for it
  while (place.has_relative_path() && place.has_parent_path() && !fs::exists(place.parent_path(), failed) && !failed)
    place = place.parent_path();
  check_place(place);
}

void save_kernel_table(speed::KernelTable& table, const std::optional<fs::path>& file, const std::stop_token& stop,
                       std::vector<std::string>& notes) {
  try {
    table.save(stop);
  } catch (const Error& e) {
    if (file || e.kind() == ErrorKind::interrupted) throw;
    notes.push_back(
        fmt::format("{}: the times of kernels are not kept, and another run may choose otherwise", e.what()));
  }
}

SpeedChoice choose_by_speed(Prepared& prepared, quantization::Placement& placement, const QuantizeOptions& options,
                            const exec::Runtime& runtime, data::SampleSource* source, const fs::path& directory,
                            const fs::path& scratch) {
  const graph::Index index(prepared.model);
  SpeedChoice choice;
  const auto file = directory / "faster-in-float.json";
  if (options.resources.ranks != nullptr)
    options.resources.ranks->barrier(options.stop);  // so that none disturbs rank 0
  std::string text;
  if (auto earlier = decided(file)) {
    text = speed::text_of(*earlier);
  } else if (shim::rank_of(options.resources.ranks) == 0) {
    const auto types = source != nullptr ? types_to_time(prepared, options, runtime, *source) : prepared.types;
    text = speed::text_of(ChoiceBySpeed(prepared, {prepared.model, index, types, options.config}, placement.selected,
                                        options, runtime, source, scratch, choice.notes)
                              .run());
    remember(file, text);
  }
  const auto told = shim::broadcast_names(options.resources.ranks, {text}, options.stop);
  const auto decision = speed::choice_of(told.front()).value();
  choice.in_float = decision.in_float;
  prepared.added_in_float = shares_of_time(decision);
  prepared.times = {decision.seconds, decision.seconds_in_float, decision.seconds_dynamic};
  const auto left =
      left_products(prepared, placement, index, std::set<std::string>(choice.in_float.begin(), choice.in_float.end()));
  if (left.count > 0) choice.notes.push_back(note_of(left, decision, options));
  for (const auto& id : choice.in_float) prepared.leave_in_float(id, InFloat::faster);
  placement = place_qdq_pairs(prepared, options.config);
  return choice;
}

TimesOfResult time_result_beside_float(const onnx::Model& model, const QuantizeOptions& options,
                                       const exec::Runtime& runtime, data::SampleSource& source,
                                       const fs::path& scratch) {
  constexpr int kTurns = 2;
  std::vector<std::string> ignored;  // told by choose_by_speed()
  auto table = open_kernel_table(options.kernel_table, runtime.version(), ignored);
  const auto samples = one_sample(source);
  const auto key = key_of_model(model, samples.front());
  if (table.find_choice(key) == nullptr) {
    if (!options.bench || options.kernel_table) return {};
    const auto float_model = onnx::read_model(options.model);
    const auto& budget = options.resources.memory_budget;
    if (budget && std::max(memory_to_try(float_model), memory_to_try(model)) > *budget) return {};
    const auto survives = [&](const auto& file) {
      exec::check_survives(runtime, file, guard_options(options));
      return true;
    };
    measure_candidate(model, scratch / "result.onnx", options, survives);
    auto seconds = std::numeric_limits<double>::infinity(), in_float = seconds;
    for (int turn = 0; turn < kTurns; ++turn) {
      in_float = std::min(in_float, seconds_of_model(float_model, runtime, samples, options.stop));
      seconds = std::min(seconds, seconds_of_model(model, runtime, samples, options.stop));
    }
    table.add_choice(key, {{}, seconds, 0, in_float});
    save_kernel_table(table, options.kernel_table, options.stop, ignored);
  }
  const auto* choice = table.find_choice(key);
  return {choice->seconds, choice->seconds_in_float};
}

}  // namespace detent::run
