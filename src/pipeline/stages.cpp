#include "pipeline/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "config/presets.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/formats.h"
#include "pipeline/stages/integers.h"
#include "pipeline/stages/open_and_deploy.h"
#include "run/comparison/proof.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

using config::kAnyResult;
using config::kBlocks;
using config::kCache;
using config::kDynamic;
using config::kIntegers;
using config::kMixed;
using enum profile::Step;
constexpr unsigned kRewritten = kAnyResult & ~(kBlocks | kCache);
constexpr unsigned kOneStep = kRewritten & ~(kIntegers | kMixed | kFloats);  // see Form

bool always(const Recipe&) { return true; }
bool with_samples(const Recipe& r) { return r.has_samples; }
bool with_prepared_output(const Recipe& r) { return r.options.prepared_output.has_value(); }
bool by_speed(const Recipe& r) { return config::chooses_by_speed(r.options); }
bool not_lowered(const Recipe& r) { return !r.lowers_rest; }
bool judges(const Recipe& r) { return not_lowered(r) && with_samples(r) && r.target->is_ort_cpu; }
bool any_form(const Recipe& r) {
  return (by_speed(r) || config::chooses_by_size(r.options)) && r.options.format.empty() &&
         config::may_tune(r.options) && r.target->is_ort_cpu && r.options.config.quant_format == QuantFormat::qdq;
}
bool report_of_samples(const Recipe& r) { return r.reports && r.has_samples; }
bool on_integers(const Recipe& r) { return r.result != kMixed || mixes_integers(r); }
bool under_budget(const Recipe& r) { return on_integers(r) && r.has_samples && r.options.resources.memory_budget; }
bool to_16_bits(const Recipe& r) { return r.lowers_rest; }
bool becomes_16_bits(const Recipe& r) { return config::writes_16_bits(r.options.config); }
bool converts_floats(const Recipe& r) { return r.lowers_rest || (r.result & kFloats) != 0; }
bool within_size(const Recipe& r) { return r.options.weights_only.max_size && !r.options.accuracy.target; }
bool for_target(const Recipe& r) { return r.options.accuracy.target.has_value(); }
bool rotates(const Recipe& r) { return r.options.weights_only.rotation == Rotation::on; }
bool rotation_is_tried(const Recipe& r) {
  return !for_target(r) && r.options.weights_only.rotation == Rotation::automatic;
}
bool solved_at_once(const Recipe& r) { return r.has_samples && !for_target(r) && !rotation_is_tried(r); }

void fold_weights(Run& run) {
  run.blocks = std::make_unique<BlockWork>(run);
  run.blocks->fold_weights();
}
template <void (BlockWork::*stage)()>
void call_on_blocks(Run& run) {
  (run.blocks.get()->*stage)();
}
constexpr auto place_blocks = call_on_blocks<&BlockWork::place>;

// One row for each stage. What a stage reads of Run was made by the rows above it.
constexpr Stage kStages[] = {
    {"leave all to rank 0", kAnyResult & ~(kIntegers | kBlocks | kMixed), always, leave_rest_to_first, nullptr,
     pre_process},
    {"read the model", kAnyResult, always, read_model, forecast_by_running<read_model>, pre_process},
    {"claim the output", kAnyResult, always, claim_output, open_without_output, pre_process},
    {"rewrite the graph", kRewritten, always, prepare, forecast_by_running<prepare>, pre_process},
    {"put the graph in order", kBlocks | kCache, always, canonicalize, forecast_by_running<canonicalize>, pre_process},
    {"check the samples", kOneStep | kMixed, with_samples, check_samples, look_at_samples, pre_process},

    {"place pairs", kIntegers | kMixed, on_integers, place_integers, forecast_by_running<place_integers>, pre_process},
    {"leave in float what is faster so", kIntegers, by_speed, choose_by_speed, forecast_by_running<choose_by_speed>,
     pre_process},
    {"keep to the budget", kIntegers | kMixed, under_budget, keep_to_budget, forecast_by_running<keep_to_budget>,
     pre_process},
    {"fold computed weights", kBlocks, always, fold_weights, forecast_by_running<fold_weights>, pre_process},
    {"rotate", kBlocks, rotates, call_on_blocks<&BlockWork::rotate>, nullptr, pre_process},
    {"place blocks", kBlocks, always, place_blocks, forecast_by_running<place_blocks>, pre_process},
    {"open the samples", kBlocks, with_samples, call_on_blocks<&BlockWork::open_samples>, look_at_samples, pre_process},
    {"write the prepared model", kRewritten, with_prepared_output, write_prepared, nullptr, pre_process},
    {"describe the layers", kIntegers, report_of_samples, describe_layers, nullptr, pre_process},

    {"calibrate", kIntegers | kMixed, on_integers, calibrate, predict_calibration, calibration},
    {"measure, and apply remedies", kIntegers | kMixed, on_integers, improve, predict_measuring},
    {"choose bits for a size", kBlocks, within_size, call_on_blocks<&BlockWork::choose_bits>, predict_choice_of_bits},
    {"choose bits for a target", kBlocks, for_target, call_on_blocks<&BlockWork::meet_target>, predict_choice_of_bits},
    {"try rotation", kBlocks, rotation_is_tried, call_on_blocks<&BlockWork::choose_rotation>},
    {"solve blocks", kBlocks, solved_at_once, call_on_blocks<&BlockWork::solve>},
    {"observe the cache", kBlocks, with_samples, call_on_blocks<&BlockWork::observe_cache>},
    {"observe the cache", kCache, always, observe_cache, look_at_samples, calibration},

    {"emit pairs, and tune weights", kIntegers, always, emit_integers, predict_integers},
    {"share out blocks", kBlocks, always, call_on_blocks<&BlockWork::share_out>, nullptr, quantization_matmul_nbits},
    {"leave the rest to rank 0", kBlocks, always, leave_rest_to_first, nullptr, quantization_matmul_nbits},
    {"leave the rest to rank 0", kIntegers, always, leave_rest_to_first},
    {"try other forms", kIntegers, any_form, try_other_forms, predict_forms},
    {"emit dynamic operators", kDynamic, always, emit_form, predict_form, quantization_dynamic},
    {"emit another form", kOneStep & ~kDynamic, always, emit_form, predict_form, quantization_static},
    {"emit blocks", kBlocks, always, call_on_blocks<&BlockWork::emit>, predict_blocks, quantization_matmul_nbits},
    {"emit the cache", kCache, always, emit_cache, predict_cache, post_process},
    {"tune weights", kMixed, mixes_integers, tune_mixed_weights},
    {"leave the rest to rank 0", kMixed, always, leave_rest_to_first},
    {"mix formats", kMixed, always, mix_formats, predict_mixture},

    {"hand the rest on", kIntegers | kBlocks, to_16_bits, lower_rest, nullptr, pre_process},
    {"select floats", kFloats, always, select_floats, forecast_by_running<select_floats>, pre_process},
    {"select floats", kIntegers | kBlocks, to_16_bits, select_floats, nullptr, pre_process},
    {"observe floats", kFloats | kIntegers | kBlocks, becomes_16_bits, observe_floats, look_at_samples, calibration},
    {"convert floats", kFloats | kIntegers | kBlocks, converts_floats, convert_floats, predict_floats,
     quantization_static},

    {"write and prove", kIntegers, not_lowered, write_integers, predict_proof},
    {"write and prove", kBlocks, not_lowered, write_result, nullptr, quantization_matmul_nbits},
    {"write and prove", kBlocks | kIntegers, to_16_bits, write_result, predict_proof, post_process},
    {"write and prove", kAnyResult & ~(kBlocks | kIntegers), always, write_result, nullptr, post_process},
    {"choose again", kIntegers, not_lowered, leave_inexact_in_float, predict_choosing_again},

    {"see whether it runs here", kBlocks | kCache, not_lowered, check_running},
    {"time", kAnyResult, is_timed, time_result, predict_timing},
    {"compare on more samples", kIntegers, judges, compare_on_more},
    {"compare", kAnyResult & ~kIntegers, with_samples, compare_result},
    {"compare", kIntegers, to_16_bits, compare_result},
    {"tell of the lowered integers", kIntegers, to_16_bits, tell_of_lowered},
    {"compare layers", kIntegers, report_of_samples, compare_layers},
};

}  // namespace

std::span<const Stage> stages() { return kStages; }

bool has(const Stage& stage, const Recipe& recipe) {
  return (stage.results & recipe.result) != 0 && stage.wanted(recipe);
}

void run_until(Run& run, void (*end)(Run&)) {
  std::optional<profile::Step> step;
  std::optional<profile::Scope> scope;
  for (const auto& stage : kStages) {
    if (!has(stage, run.recipe)) continue;
    if (end != nullptr && stage.work == end) return;
    if (stage.step != step) {
      scope.reset();
      step = stage.step;
      if (step) scope.emplace(run.profiler.scope(*step));
    }
    stage.work(run);
  }
}

namespace {

QuantizeResult run_as_given(const QuantizeOptions& options, const SharedByRuns& shared) {
  run::RunProfiler profiler(options.profiler, options.profile);  // first: what a recipe reads counts
  const auto recipe = recipe_of(options);
  Run run(recipe, shared, profiler);
  run_until(run);
  return finish(run);
}

std::string words_of(const std::unordered_set<std::string>& in_float32) {
  constexpr std::size_t kNamed = 4;
  std::vector<std::string> names(in_float32.begin(), in_float32.end());
  std::sort(names.begin(), names.end());
  const bool more = names.size() > kNamed;
  if (more) names.resize(kNamed);
  return fmt::format(
      "16 bits do not hold what some nodes read or compute on made-up inputs, so they stay in float32: {}{}",
      fmt::join(names, ", "), more ? ", …" : "");
}

// Without samples the proof finds what 16 bits do not do for, value after value.
QuantizeResult run_in_float32_where_needed(const QuantizeOptions& options, const SharedByRuns& shared) {
  constexpr int kMostRuns = 8;
  auto known = shared;
  for (int runs = 1;; ++runs) {
    try {
      auto result = run_as_given(options, known);
      if (!known.in_float32.empty()) result.notes.push_back(words_of(known.in_float32));
      return result;
    } catch (const run::BeyondFloat16& lost) {
      const auto before = known.in_float32.size();
      known.in_float32.insert(lost.nodes.begin(), lost.nodes.end());
      if (known.in_float32.size() == before || runs == kMostRuns || shim::size_of(options.resources.ranks) > 1) throw;
    }
  }
}

}  // namespace

QuantizeResult run_stages(const QuantizeOptions& options, const SharedByRuns& shared) {
  auto given = options;
  std::vector<std::string> notes;  // of the forms that were tried before
  while (true) {
    try {
      auto result = run_in_float32_where_needed(given, shared);
      result.notes.insert(result.notes.end(), notes.begin(), notes.end());
      return result;
    } catch (const run::LostInRuntime& lost) {
      auto& blocks = given.weights_only;
      if (lost.in_int8 || blocks.form == WeightForm::matmul_nbits) {
        blocks.accuracy_level = 0;
        notes.push_back(fmt::format("{}: so it is written with --set accuracy-level=0", lost.what()));
      } else {
        blocks.form = WeightForm::matmul_nbits;
        notes.push_back(fmt::format("{}: so weights are stored for MatMulNBits instead", lost.what()));
      }
      if (options.samples != nullptr) options.samples->rewind();
    } catch (const Error& e) {
      const bool of_form =
          e.kind() == ErrorKind::bad_input || e.kind() == ErrorKind::usage || e.kind() == ErrorKind::device;
      if (notes.empty() || !of_form) throw;
      throw device_error(notes.back(), fmt::format("that ends with: {}", e.what()));
    }
  }
}

}  // namespace detent::pipeline
