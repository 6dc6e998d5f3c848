// What a run of quantize hands from stage to stage.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/numbers.h"
#include "calibration/statistics.h"
#include "config/option.h"
#include "config/targets.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "run/context.h"
#include "run/files/run_directory.h"
#include "run/model/prepare.h"
#include "run/records/run_report.h"

namespace detent::pipeline {

// What a run of quantize makes: its options, resolved once before anything is done. Nothing changes it afterwards.

/// Results that change the type of floats alone; and those without integers, for which the runtime's CPU has no
/// kernels.
constexpr unsigned kFloats = config::kFloat16 | config::kFloat32, kWithoutIntegers = kFloats | config::kBlockFloats;

struct Recipe {
  /// Valid, for one model file, with a name of a target and with the floating-point type that the result has.
  QuantizeOptions options;
  config::Result result = config::kIntegers;
  const config::Target* target = nullptr;
  bool has_samples = false;
  bool reports = false;  // an HTML report or a trace is asked for
  /// What integers or weights in blocks leave in float32 becomes 16-bit floats in the end, scales included.
  bool lowers_rest = false;
  /// Nodes by Node::id() of a model of 16-bit floats that compute in float32, and stay so.
  std::unordered_set<std::string> in_float32 = {};
  std::vector<std::string> notes = {};
};

/// Whether the deployed result is timed: the runtime's CPU has no kernels of 16-bit floats and block floats.
inline bool is_timed(const Recipe& recipe) {
  return recipe.options.bench && !recipe.lowers_rest && (recipe.result & kWithoutIntegers) == 0;
}

/// What follows from the options alone.
Recipe recipe_of_options(const QuantizeOptions& options);

/// A model of 16-bit floats whose products become integers keeps its type, unless the options say otherwise: for that
/// it is read. Throws bad_input where it has several such types, and what loading it throws.
Recipe recipe_of(const QuantizeOptions& options, config::Command command = config::kQuantize);

struct IntegerWork;
class BlockWork;
struct CacheWork;
struct FloatWork;

/// What several runs for the same model and samples know of each other.
struct SharedByRuns {
  /// Extremes of the float model's values. Runs of weights in blocks fill it, those of 16-bit floats use it, and need
  /// no samples then. Null: nothing is known, and nobody asks.
  calibration::Statistics* extremes = nullptr;
  /// Where weights in blocks find what was solved of them in other runs with the same samples, and leave what they
  /// solve. Empty: each run solves them by itself.
  std::filesystem::path solutions = {};
  /// The float model that the result is compared with, where it is not that of the options.
  std::filesystem::path original = {};
  /// Nodes by Node::id() that 16 bits do not do for, as a run before this one found.
  std::unordered_set<std::string> in_float32 = {};
  /// What passes over the samples have observed, by all that it depends on but the samples: a run that would observe
  /// the same takes it from here, and leaves there what it observes. Null: each run observes by itself.
  std::map<std::string, calibration::Statistics>* observed = nullptr;
};

struct Run {
  /// What is given must outlive the run.
  Run(const Recipe& recipe, const SharedByRuns& shared, run::RunProfiler& profiler);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();

  const Recipe& recipe;
  const QuantizeOptions& options;  // the recipe's
  const SharedByRuns& shared;
  run::RunProfiler& run_profiler;
  profile::Profiler& profiler;
  std::optional<exec::Runtime> runtime;
  std::optional<run::RunDirectory> work;  // weights in blocks without samples need none
  QuantizeResult result;
  run::RunReport report;

  /// As it was read, until it is prepared; then as it will be written.
  onnx::Model model;
  /// Ready to be quantized, for all but weights in blocks and caches, which change no other node.
  run::Prepared prepared;
  std::optional<Fingerprint> fingerprint;  // of the model as it was read, where statistics are given
  /// What the deployed model is timed with. Unset: it is not.
  std::optional<std::vector<data::InputSpec>> timed_inputs;
  double sample_seconds = 0;  // of calibration; 0: not known
  /// Whether ONNX Runtime's CPU runs what is written, so that it can be timed and compared.
  bool runs_here = true;

  // What belongs to one kind of result; the stage that makes it comes first among those that read it.
  std::unique_ptr<IntegerWork> integers;
  std::unique_ptr<BlockWork> blocks;
  std::unique_ptr<CacheWork> cache;
  std::unique_ptr<FloatWork> floats;

  void note(const std::vector<std::string>& notes) {
    result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  }
  graph::UnfoldLimits limits() const { return {options.resources.memory_budget, options.stop}; }
  /// Of a pass over the samples whose working files are in this folder.
  run::Context context(const std::filesystem::path& directory) const {
    return {*runtime, options.resources, directory, options.threads, options.progress, options.stop};
  }
  /// Samples from the beginning, for a model with these inputs; with ranks, this one's share of them.
  std::unique_ptr<data::SampleSource> open_samples(std::vector<data::InputSpec> inputs,
                                                   const shim::Ranks* ranks = nullptr) const;
  /// The runtime, loaded at the first call. `or_none`: null where there is none and none was named.
  const exec::Runtime& load_runtime();
  const exec::Runtime* runtime_or_none();
};

}  // namespace detent::pipeline
