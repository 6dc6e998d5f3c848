// The stages of weights in blocks that have a scale each, samples optional.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "calibration/statistics.h"
#include "data/sample.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "pipeline/block_bits.h"
#include "pipeline/block_drafts.h"
#include "pipeline/run.h"
#include "run/context.h"
#include "run/model/finish.h"
#include "run/samples/sample_feed.h"
#include "solve/sweep/gram_sweep.h"

namespace detent::pipeline {

/// What these stages hand on, and how they solve.
class BlockWork {
 public:
  /// Takes Run::model.
  explicit BlockWork(Run& run);

  /// Weights that the model computes from constants become constants.
  void fold_weights();
  void rotate();
  void place();
  void open_samples();
  /// Which weights get how many bits, within WeightsOnlyConfig::max_size.
  void choose_bits();
  /// The smallest model that reaches the accuracy target on samples that are held back, each solved, written and run.
  void meet_target();
  /// Rotated and not, each solved, written and run; what is nearer to the float model on samples that are held back is
  /// solved on all.
  void choose_rotation();
  /// From what the products read on the samples.
  void solve();
  /// Where that pass did not see the cache of keys and values.
  void observe_cache();
  /// Blocks that samples did not solve, by several processes.
  void share_out();
  /// Run::model, with weights that are made as they are written.
  void emit();

  const DraftedBlocks& draft() const { return draft_; }
  /// Of the float model's values, where there were samples.
  const calibration::Statistics* extremes() const;
  /// Why a runtime may know the written file without having kernels for it; empty: it must run.
  std::string reason_against_proof() const;
  /// Why the file cannot be run, or not on these samples; empty: it can.
  std::string reason_against_running(const std::filesystem::path& file) const;
  std::string reason_against_samples(const std::filesystem::path& file) const;
  /// Forgets the model, once it is written.
  void release();

 private:
  // Attempts leave the cache and the extremes of values alone: they are observed once, on all samples.
  enum class Listens { no, yes };

  const onnx::Model& running() const { return raised_ ? *raised_ : draft_.model; }
  bool keeps_cache_in_bits() const { return options_.kv_cache.type != KvCacheType::keep; }
  run::Context context() const;
  void measure_sensitivities(BitsPlanner& planner);
  void count_nodes();
  void raise_model();
  void take(PlannedBits planned);
  PlanSamples plan_samples(data::SampleSource& source) const;
  double measure(data::SampleSource& samples);
  void solve(data::SampleSource& source, const std::filesystem::path& directory, Listens listens);
  solve::GramSweepOptions sweeping(store::Spool* spool, Listens listens);
  quantization::Placement placement_as_run() const;
  std::uint64_t usual_memory(std::uint64_t budget) const;
  solve::GramMemory memory_for_gram_sums(std::uint64_t budget) const;
  onnx::Model emitted(quantization::BlocksWritten written = {}) const;

  Run& run_;
  const QuantizeOptions& options_;
  Resources resources_;  // with the disk that is left
  DraftedBlocks draft_;
  std::optional<onnx::Model> raised_;  // as samples run through it, where the model has 16-bit floats
  graph::ValueTypes types_;            // of running()
  std::unique_ptr<data::SampleSource> given_;
  std::optional<run::ContentOrderedSamples> source_;
  std::optional<run::KvCacheRun> cache_;
  bool has_seen_cache_ = false;
  calibration::Statistics own_extremes_;
  std::optional<StreamRotation> rotation_;
  BitsTarget target_;
};

/// The stages of a decoder whose cache of keys and values has fewer bits, and nothing else.
struct CacheWork {
  run::KvCacheRun cache;
};

/// Watches keys and values of all samples, as the model makes them in float32.
void observe_cache(Run& run);
/// Puts the scales into Run::model.
void emit_cache(Run& run);

}  // namespace detent::pipeline
