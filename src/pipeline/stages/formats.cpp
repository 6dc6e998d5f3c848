#include "pipeline/stages/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/enum_names.h"
#include "config/presets.h"
#include "data/given_inputs.h"
#include "exec/emit.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "pipeline/stages.h"
#include "pipeline/stages/integers.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/placement.h"
#include "quantization/weight_operators.h"
#include "remedies/equalization.h"
#include "remedies/remedies.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"
#include "run/comparison/pairing.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/model/format_choice.h"
#include "run/model/prepare.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"

namespace detent::pipeline {

namespace {

quantization::Placement place_block_floats(const Run& run) {
  auto placement = run::place_qdq_pairs(run.prepared, run.options.config);
  run::count_nodes(run.prepared.model, placement);
  return placement;
}

onnx::Model emit_block_floats(Run& run) {
  const auto format = run.options.config.block_float;
  auto& prepared = run.prepared;
  quantization::Assignment assignment{.placement = run::place_qdq_pairs(prepared, run.options.config),
                                      .block_float = format};
  // What keeps weights from being numbers at all is told before any work.
  quantization::scan_weights(prepared.model, assignment.placement, run.options.allow_nonfinite);
  run::count_nodes(prepared.model, assignment.placement);
  run::record(assignment.placement, run.result);
  const auto before = prepared.model.graph.nodes.size();
  auto model = quantization::emit_block_floats({std::move(prepared.model), prepared.types}, assignment).model;
  const auto operators = model.graph.nodes.size() - before;
  graph::deduplicate_constants(model, prepared.shapes_stored_once, true);
  run.result.notes.push_back(
      fmt::format("{} that round{} to {}; the file's weights stay in float32, and ONNX Runtime runs it with AMD "
                  "Quark's operator library alone",
                  count_with_noun(operators, "operator"), operators == 1 ? "s" : "",
                  config::word_of(config::enum_names<BlockFloat>(), static_cast<int>(format))));
  return model;
}

// Of weights that several nodes read.
void mark_shared_weight_shapes(run::Prepared& prepared, const quantization::Placement& weights) {
  const graph::Index index(prepared.model);
  for (const auto& mark : weights.marks) {
    if (index.consumers(mark.value).size() < 2) continue;
    auto dims = prepared.model.graph.initializers[static_cast<std::size_t>(index.initializer(mark.value))].dims;
    std::sort(dims.begin(), dims.end());
    prepared.shapes_stored_once.insert(std::move(dims));
  }
}

onnx::Model dynamic_form(const QuantConfig& config, bool allow_nonfinite, run::Prepared& prepared,
                         QuantizeResult& told) {
  auto [made, placement, notes] =
      quantization::make_dynamic(prepared.model, config, allow_nonfinite, prepared.transposed);
  run::record(placement, told);
  told.notes.insert(told.notes.end(), notes.begin(), notes.end());
  mark_shared_weight_shapes(prepared, placement);
  for (auto& text : run::store_weights(placement.stored, made)) told.notes.push_back(std::move(text));
  graph::deduplicate_constants(made, prepared.shapes_stored_once, true);
  graph::recompute_constants_at_load(made, prepared.folded);
  if (quantization::scales_rows(prepared.model)) {
    told.notes.emplace_back("activations have a scale for each row, that is, for each token");
    return std::move(made);
  }
  told.notes.emplace_back(
      "an activation has one scale for its whole batch: rows beside large values lose precision; results of "
      "--weights-only --bits 8 do not depend on the batch");
  return std::move(made);
}

using Inputs = std::vector<data::Array>;

// Without samples ids are drawn from the table. That is no text, but the channels that are large in text are so here.
std::vector<Inputs> inputs_to_observe(const Run& run, const std::vector<data::InputSpec>& specs) {
  constexpr std::size_t kMost = 8, kMadeUp = 4;
  if (run.recipe.has_samples) return run::first_samples(*run.open_samples(specs), kMost);
  const auto& transformer = run.result.transformer;
  if (!transformer || !transformer->embedding || transformer->embedding->entries < 1) return {};
  std::vector<Inputs> made;
  for (std::size_t m = 0; m < kMadeUp; ++m) {
    auto& arrays = made.emplace_back(data::synthetic_inputs(specs, {}, run.options.input_values, {.cached = 0}));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].name != data::kTokenIds || specs[i].type != onnx::DataType::int64) continue;
      const auto ids = std::make_shared<std::vector<std::int64_t>>(arrays[i].bytes.size() / sizeof(std::int64_t));
      for (std::size_t t = 0; t < ids->size(); ++t) (*ids)[t] = random_at(m, 0, t)[0] % transformer->embedding->entries;
      arrays[i].bytes = std::as_bytes(std::span<const std::int64_t>(*ids));
      arrays[i].owner = ids;
    }
  }
  return made;
}

// Of values that a normalization hands to nothing but such products: there factors become part of its constants.
std::vector<graph::ChannelScaling> smoothable(const run::Prepared& prepared, const QuantConfig& config) {
  const auto& model = prepared.model;
  const graph::Index index(model);
  quantization::Placement placement;
  placement.selected = quantization::place_dynamic(model, config, prepared.transposed).selected;
  std::set<std::string> values;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    placement.selected[n] = placement.selected[n] && graph::is_matrix_product(node);
    if (placement.selected[n] && values.insert(node.inputs()[0]).second)
      placement.marks.push_back(
          {.value = node.inputs()[0], .granularity = {}, .shares = {}, .float_readers_unrounded = true});
  }
  auto found = remedies::equalizable(model, index, placement);
  std::erase_if(found, [&](const graph::ChannelScaling& scaling) {
    const int maker = index.producer(scaling.value);
    if (maker == graph::kNone || index.consumers(scaling.value).size() != scaling.readers.size()) return true;
    const auto& node = model.graph.nodes[static_cast<std::size_t>(maker)];
    const bool by_constant = node.is("Mul") && std::ranges::any_of(node.inputs(), [&](const auto& input) {
                               return index.initializer(input) != graph::kNone;
                             });
    if (!by_constant && node.op_type().find("Norm") == std::string::npos) return true;
    return std::ranges::any_of(scaling.readers, [&](const auto& reader) {
      return std::ranges::any_of(prepared.transposed, [&](const auto& pair) {
        return pair.first == reader.weight || pair.second == reader.weight;  // stored once, as it is
      });
    });
  });
  return found;
}

// As products will read them: each row over its largest magnitude.
void add_rows(const data::Array& array, remedies::ChannelExtremes& extremes) {
  std::vector<float> values(array.bytes.size() / sizeof(float));
  std::memcpy(values.data(), array.bytes.data(), array.bytes.size());
  const auto width = static_cast<std::size_t>(array.shape.back());
  for (std::size_t at = 0; at + width <= values.size(); at += width) {
    const std::span row(values.data() + at, width);
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::abs(value));
    for (float& value : row) value = largest > 0 ? value / largest : 0;
  }
  extremes.add(values, array.shape, true);
}

// Channels that are large in a decoder's normalized values are divided by factors, and the weights multiplied: what
// the model computes stays the same (SmoothQuant).
void smooth_channels(Run& run) {
  auto& prepared = run.prepared;
  auto& model = prepared.model;
  const auto budget = run.options.resources.memory_budget;
  if (!quantization::scales_rows(model) || (budget && 3 * run::size_on_disk(model) > *budget)) return;
  auto scalings = smoothable(prepared, run.options.config);
  const auto samples = scalings.empty() ? std::vector<Inputs>() : inputs_to_observe(run, run::input_specs(model));
  if (samples.empty()) return;
  std::vector<std::string> values;
  for (const auto& scaling : scalings) values.push_back(scaling.value);
  std::vector<remedies::ChannelExtremes> extremes(scalings.size());
  try {
    exec::Session session(run.load_runtime(), exec::emit(model, {.taps = {}, .outputs = values, .input_shapes = {}}),
                          "the float model", {.threads = run.options.threads, .stop = run.options.stop});
    for (const auto& sample : samples) {
      const auto results = session.run(sample, "channels");
      for (std::size_t v = 0; v < results.size(); ++v) add_rows(results[v], extremes[v]);
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted || run.recipe.has_samples) throw;
    return;  // synthetic inputs
  }
  const graph::Index index(model);
  for (std::size_t v = 0; v < scalings.size(); ++v)
    scalings[v].factors = remedies::equalizing_factors(model, index, scalings[v], extremes[v], {});
  graph::scale_channels(model, prepared.types, scalings, run::file_store(run.work->scratch(), "smoothed"));
  run.note({fmt::format("{}: large channels are scaled down and weights scaled up, by {}",
                        count_with_noun(scalings.size(), "normalized value"),
                        run.recipe.has_samples ? "samples" : "random token ids")});
}

quantization::Placement place_dynamic(const Run& run) {
  return quantization::place_dynamic(run.prepared.model, run.options.config, run.prepared.transposed);
}

onnx::Model emit_dynamic(Run& run) {
  smooth_channels(run);
  return dynamic_form(run.options.config, run.options.allow_nonfinite, run.prepared, run.result);
}

constexpr Form kForms[] = {
    {config::kDynamic, place_dynamic, emit_dynamic, true},
    {config::kBlockFloats, place_block_floats, emit_block_floats, false},
};

// Scales that are found while the model runs are taken where they are faster than fixed ones and as close, or where
// fixed ones leave the results farther away than run::kCloseDb and they do not, by far, at float's speed. Where fixed
// scales lose the results, whose signal-to-noise ratio then says little (a voice's phases differ), any that come closer
// count.
constexpr double kSameTime = 1.03, kFaster = 0.97;
constexpr double kMayBeSameTime = 1.5;  // where each was timed once, while others may have used the machine
constexpr double kCloseEnoughDb = 30;   // for a faster form
constexpr double kAsCloseDb = 1;        // a difference that counts
constexpr double kMuchCloserDb = 6;     // half the error, which the speed of fixed scales is worth
constexpr double kLostDb = 3;           // the error has half the power of the result

run::TimesOfResult times_beside_float(Run& run, const onnx::Model& model) {
  return run::time_result_beside_float(model, run.options, *run.runtime, *run.integers->source, run.work->scratch());
}

bool takes_dynamic_scales(Run& run, double seconds) {
  auto& work = *run.integers;
  const auto& times = work.draft.prepared.times;
  const double fixed_db = run.result.accuracy->sqnr_db;
  const bool is_faster = times.dynamic > 0 && times.dynamic <= kFaster * seconds;
  const bool may_replace =
      times.dynamic > 0 && fixed_db < run::kCloseDb && times.dynamic <= kMayBeSameTime * times.in_float;
  if (!is_faster && !may_replace) return false;
  auto config = run.options.config;
  config.activations = Activations::dynamic;
  auto prepared = work.draft.prepared;
  QuantizeResult told;
  auto model = dynamic_form(config, run.options.allow_nonfinite, prepared, told);
  const double dynamic_db = work.evaluator->deployed(model).sqnr_db;
  const double needed_db =
      fixed_db < kLostDb ? fixed_db + kAsCloseDb : std::max(run::kCloseDb, fixed_db + kMuchCloserDb);
  double taken = times.dynamic;
  if (!is_faster || dynamic_db < std::min(fixed_db - kAsCloseDb, kCloseEnoughDb)) {
    if (!may_replace || dynamic_db < needed_db) return false;
    const auto measured = times_beside_float(run, model);
    if (measured.result > 0) taken = measured.result;
    if (taken > kSameTime * (measured.result > 0 ? measured.in_float : times.in_float)) return false;
  }
  run.result.notes.push_back(
      fmt::format("scales of activations are found while the model runs: {:.1f} dB and {:.3g} ms; with fixed scales "
                  "(--format int8) {:.1f} dB and {:.3g} ms",
                  dynamic_db, 1e3 * taken, fixed_db, 1e3 * seconds));
  run.note(told.notes);
  run.result.nodes_quantized = told.nodes_quantized;
  run.result.nodes_in_float = told.nodes_in_float;
  run.result.activations.clear();
  run.result.layers.clear();
  run.result.accuracy.emplace().sqnr_db = dynamic_db;
  work.draft.emitted->model = std::move(model);
  work.draft.emitted->provenance = {};
  work.is_dynamic = true;
  count_integers(run, work.draft.emitted->model);
  return true;
}

// Whether what was chosen is slower than float, with the note that says so.
std::optional<std::string> slower_than_float(Run& run) {
  auto& work = *run.integers;
  const auto& times = work.draft.prepared.times;
  const auto measured = times_beside_float(run, work.draft.emitted->model);
  const double seconds = measured.result > 0 ? measured.result : times.chosen;
  const double in_float = measured.in_float > 0 ? measured.in_float : times.in_float;
  if (in_float <= 0) return std::nullopt;  // neither the model nor its operators were timed
  if (takes_dynamic_scales(run, seconds) || seconds <= kSameTime * in_float) return std::nullopt;
  return fmt::format(
      "all stays in float, since this machine takes {:.3g} ms for the model with what accuracy needs there, and {:.3g} "
      "ms in float; --format int8 quantizes it all the same",
      1e3 * seconds, 1e3 * in_float);
}

// Less is not worth losing the speed of integers.
constexpr std::uint64_t kSmallerPercent = 95;

struct StoredForm {
  std::set<std::string> products;
  std::uint64_t bytes;  // about
};

// What computes in float on weights of 8 bits where nothing computes on integers.
StoredForm stored_form(const run::Prepared& prepared, const QuantConfig& config) {
  auto products = quantization::products_to_store(prepared.model, config, prepared.transposed);
  const auto weights = quantization::weights_of(prepared.model, products);
  return {std::move(products), bytes_as_it_is(prepared.model) - saved_by_8_bits(prepared.model, weights)};
}

void take_smaller_form(Run& run) {
  auto& work = *run.integers;
  const auto bytes = [&] {
    const auto sizes = onnx::written_sizes(work.draft.emitted->model, run.options.output);
    return sizes.model_bytes + sizes.data_bytes;
  };
  const auto before = bytes(), allowed = before * kSmallerPercent / 100;
  if (!work.stores_if_harmless || stored_form(work.improved->draft.prepared, run.options.config).bytes > allowed)
    return;
  auto result = run.result;
  auto draft = work.draft;
  leave_all_in_float(run);
  if (const auto stored = bytes(); stored <= allowed) {
    run.result.notes.push_back(
        fmt::format("weights alone have 8 bits: {}, and {} with activations quantized too (--format int8)",
                    format_size(stored), format_size(before)));
    return;
  }
  run.result = std::move(result);
  work.draft = std::move(draft);
}

}  // namespace

const Form& form_of(const Run& run) { return *std::ranges::find(kForms, run.recipe.result, &Form::result); }

void emit_form(Run& run) { run.model = form_of(run).emit(run); }

void predict_forms(Run& run, Forecast& forecast) {
  auto& plan = forecast.plan;
  if (!config::chooses_by_size(run.options) || !run.recipe.has_samples) return;
  const auto& prepared = run.integers->draft.prepared;
  const auto stored = stored_form(prepared, run.options.config);
  if (stored.bytes > plan.output_bytes * kSmallerPercent / 100) return;
  plan.output_bytes = stored.bytes;
  run.result.nodes_quantized = stored.products.size();
  const auto& nodes = prepared.model.graph.nodes;
  run.result.nodes_in_float =
      static_cast<std::size_t>(std::ranges::count_if(nodes, graph::is_product)) - run.result.nodes_quantized;
}

void try_other_forms(Run& run) {
  auto& work = *run.integers;
  if (config::chooses_by_size(run.options)) {
    if (work.improved && work.evaluator) take_smaller_form(run);
    return;
  }
  if (!work.measured || !work.evaluator || !work.source || !run.result.accuracy) return;
  const auto scope = run.profiler.scope(run::kSensitivityStage);
  std::optional<std::string> note;
  try {
    note = slower_than_float(run);
  } catch (const Error& e) {
    // The proof tells of what the runtime refuses or dies of.
    if (e.kind() != ErrorKind::bad_input && e.kind() != ErrorKind::device) throw;
  }
  if (!note) return;
  leave_all_in_float(run);
  run.result.notes.push_back(*note);
}

namespace {

using config::NodeFormat;

// Constants of a model by their names.
class Constants {
 public:
  explicit Constants(const onnx::Model& model) : model_(model), index_(model) {}

  static constexpr auto kNone = static_cast<std::size_t>(-1);
  std::size_t index_of_constant(const std::string& name) const {
    const int found = index_.initializer(name);
    return found == graph::kNone ? kNone : static_cast<std::size_t>(found);
  }
  const onnx::Tensor* find(const std::string& name) const {
    const auto found = index_of_constant(name);
    return found == kNone ? nullptr : &model_.graph.initializers[found];
  }

 private:
  const onnx::Model& model_;
  graph::Index index_;
};

bool are_equal(const onnx::Tensor* a, const onnx::Tensor* b) {
  if (a == nullptr || b == nullptr || a->type != b->type || a->dims != b->dims) return false;
  if (a->data.is_produced() || b->data.is_produced()) return false;
  return std::ranges::equal(a->data.bytes(), b->data.bytes());
}

class Mixture {
 public:
  Mixture(Run& run, QuantizeResult& told) : run_(run), options_(run.options), told_(told) {}

  onnx::Model make(const std::vector<std::string>& node_formats) {
    const auto possible = run::possible_formats(run_.prepared, options_.config);
    const auto formats = run::given_formats(run_.prepared, possible, node_formats);
    steps_ = run::nodes_by_format(run_.prepared, possible, formats);
    auto model = prepared().model;
    if (!steps_.blocks.empty()) model = in_blocks(model);
    if (!steps_.dynamic.empty()) model = with_dynamic_scales(std::move(model));
    if (steps_.fixed.empty()) {
      note(run::store_weights(steps_.stored, model));
      graph::deduplicate_constants(model, prepared().shapes_stored_once, true);
    } else {
      model = with_pairs(std::move(model));
    }
    count(formats, possible);
    return model;
  }

 private:
  // Remedies may have scaled the weights of the model that gets integers.
  const run::Prepared& prepared() const { return steps_.fixed.empty() ? run_.prepared : run_.integers->draft.prepared; }
  bool is_scaled() const { return !steps_.fixed.empty() && !run_.integers->draft.result.equalized.empty(); }

  // What is said of a private file is said of the user's model.
  QuantizeResult by_the_users_name(const std::filesystem::path& file,
                                   const std::function<QuantizeResult()>& run) const {
    try {
      return run();
    } catch (const Error& e) {
      std::string text = e.what();
      const auto name = file.string();
      for (auto at = text.find(name); at != text.npos; at = text.find(name))
        text.replace(at, name.size(), options_.model.string());
      throw Error(e.kind(), text, e.hint());
    }
  }

  void note(const std::vector<std::string>& notes) {
    for (const auto& text : notes) {
      if (std::find(told_.notes.begin(), told_.notes.end(), text) == told_.notes.end()) told_.notes.push_back(text);
    }
  }

  void count(const std::vector<NodeFormat>& formats, const run::PossibleFormats& possible) {
    told_.nodes_quantized = told_.nodes_in_float = 0;
    for (std::size_t n = 0; n < formats.size(); ++n) {
      if (formats[n] != NodeFormat::fp32) ++told_.nodes_quantized;
      if (formats[n] == NodeFormat::fp32 && !possible[n].empty()) ++told_.nodes_in_float;
    }
    if (told_.nodes_quantized == 0)
      throw usage_error("--node-formats leaves all nodes in float", "give a node another format than fp32");
  }

  // By a run of its own, which solves them from what they read on the samples, unless another mixture has.
  onnx::Model in_blocks(onnx::Model& model) {
    auto options = options_;
    const auto folder = run_.work->scratch();
    options.node_formats.clear();
    options.model = folder / "float.onnx";
    options.output = folder / "blocks.onnx";
    options.external_data_threshold.reset();
    options.external_data_suffix.clear();
    options.prepared_output.reset();
    options.profile.reset();
    options.report.reset();
    options.trace.reset();
    options.bench = false;
    options.resources.resume = false;
    options.resources.work_dir = folder;
    options.config.input_shapes.clear();
    options.config.float_type = FloatType::keep;
    options.weights_only.enabled = true;
    options.weights_only.node_bits = steps_.block_bits;
    options.config.nodes = steps_.blocks;
    if (options.samples != nullptr) options.samples->rewind();
    onnx::write_model(model, options.model, {});
    const auto solutions = folder / (is_scaled() ? "solutions-scaled" : "solutions");
    paths::make_folder(solutions);
    auto made = by_the_users_name(options.model, [&] { return run_stages(options, {.solutions = solutions}); });
    told_.weights = std::move(made.weights);
    told_.samples = std::max(told_.samples, made.samples);
    note(made.notes);
    return onnx::read_model(options.output);
  }

  onnx::Model with_dynamic_scales(onnx::Model model) {
    auto config = options_.config;
    config.activations = Activations::dynamic;
    config.nodes = steps_.dynamic;
    auto made = quantization::make_dynamic(std::move(model), config, options_.allow_nonfinite);
    note(made.notes);
    return std::move(made.model);
  }

  onnx::Model with_pairs(onnx::Model model) {
    const auto& draft = run_.integers->draft;
    auto prepared = draft.prepared;
    for (const auto& id : steps_.stored) prepared.nodes[id].stored = true;
    if (!steps_.blocks.empty() || !steps_.dynamic.empty()) {
      prepared.model = std::move(model);
      prepared.types = exec::infer_value_types(*run_.runtime, prepared.model);
    }
    auto options = options_;
    options.config.exclude_nodes = steps_.in_float;
    options.config.wide_nodes = steps_.wide;
    auto placement = run::place_qdq_pairs(prepared, options.config);
    auto proposals = draft.proposals;
    proposals.constants = quantization::scan_weights(prepared.model, placement, options_.allow_nonfinite);
    const auto assignment = quantization::assign(prepared.model, std::move(placement), proposals, options.config);
    run::record_assignment(prepared.model, assignment, told_);
    auto emitted = quantization::emit_qdq(prepared, assignment);
    note(emitted.notes);
    const bool tuned = take_tuned(*draft.emitted, emitted);
    run::write_applied({!draft.result.equalized.empty(), tuned}, emitted.model);
    note(run::finish_integers(prepared, options, emitted.model));
    return std::move(emitted.model);
  }

  // Integers that tuning found, wherever they have the scales that they were found for.
  static bool take_tuned(const quantization::Emitted& from, quantization::Emitted& to) {
    const Constants found(from.model), made(to.model);
    bool any = false;
    for (const auto& [value, stored] : from.provenance.values) {
      const auto* tuned = found.find(stored.stored);
      const auto here = to.provenance.values.find(value);
      if (tuned == nullptr || tuned->data.is_produced() || here == to.provenance.values.end()) continue;
      const auto at = made.index_of_constant(here->second.stored);
      if (at == Constants::kNone || !are_equal(found.find(stored.scale), made.find(here->second.scale))) continue;
      auto& tensor = to.model.graph.initializers[at];
      if (tensor.type != tuned->type || tensor.dims != tuned->dims) continue;
      tensor.data = tuned->data;
      any = true;
    }
    return any;
  }

  Run& run_;
  const QuantizeOptions& options_;
  QuantizeResult& told_;
  run::NodesByFormat steps_;
};

}  // namespace

bool mixes_integers(const Recipe& recipe) {
  const auto& entries = recipe.options.node_formats;
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return config::is_static(config::parse_node_format(entry).format); });
}

void tune_mixed_weights(Run& run) {
  auto& work = *run.integers;
  auto& draft = work.draft;
  quantization::copy_shared_ranges(draft.assignment.placement, draft.proposals.ranges);
  quantization::copy_shared_ranges(draft.assignment.placement, draft.proposals.wide);
  draft.emitted = quantization::emit_qdq(draft.prepared, draft.assignment);
  if (!work.measured || !work.tunes_if_needed || !config::may_tune(run.options)) return;
  draft.is_cut = true;
  remedies::improve_emitted(draft, *work.evaluator);
  run.note(draft.notes);
}

onnx::Model mixture(Run& run, const std::vector<std::string>& node_formats, QuantizeResult& told) {
  return Mixture(run, told).make(node_formats);
}

void mix_formats(Run& run) {
  if (run.integers && run.integers->evaluator) run.integers->evaluator->release_trial_memory();
  run.model = mixture(run, run.options.node_formats, run.result);
  if (run.integers) run.note(run::notes_for_this_machine(run.options.config));
}

}  // namespace detent::pipeline
