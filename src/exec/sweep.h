// The sweep: a model runs as a chain of segments, each over all samples, and the spool holds what passes from one to
// the next. A single segment is plain inference.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "exec/session.h"
#include "graph/index.h"
#include "graph/segment.h"
#include "onnx/model.h"
#include "store/spool.h"

namespace detent::exec {

struct BranchOptions {
  SessionOptions session;
  /// Values that get a tap.
  std::vector<std::string> taps;
  /// Nodes whose first input gets a tap as they read it, see EmitOptions::readers.
  std::vector<std::string> readers = {};
  /// Products are rewritten so that a sample gives the same bits in a batch of any size, see make_batch_invariant().
  bool batch_invariant = false;
  /// Stands before the names of the branch's lanes, so that several branches can share a spool.
  std::string name;
  /// The inputs of the graph for a sample, for records that were lost; without it, such a loss ends the run. May be
  /// called from several threads.
  std::function<std::vector<data::Array>(std::size_t sample)> inputs_of;
};

class Branch;

/// What is handed to a receiver: values, and what nodes read.
struct Tapped {
  std::vector<std::string> values, readers;

  bool empty() const noexcept { return values.empty() && readers.empty(); }
};

/// For a sample that only passes. Taps must stand in its graph all the same, so that it computes the same bits.
class NullReceiver : public data::TapReceiver {
 public:
  void receive(std::size_t, const data::TensorView&, const data::ParallelFor&) override {}
  void receive_on_device(std::size_t, const data::DeviceTensorView&) override {}
};

/// A segment that is loaded and ready to run.
class Stage {
 public:
  /// Taps of this segment, in the order that the receiver counts them.
  const std::vector<std::string>& taps() const noexcept { return taps_.values; }
  /// Readers of this segment, which it counts behind them.
  const std::vector<std::string>& readers() const noexcept { return taps_.readers; }

  /// Runs one sample: its inputs come from the spool, or for the first segment from `graph_inputs` (in the order of the
  /// graph's inputs), and what later segments read goes to the spool. Returns the extra outputs of Branch::load().
  /// Several threads may run samples at a time. Throws what Session::run() and the spool throw.
  std::vector<data::Array> run(std::size_t sample, std::span<const data::Array> graph_inputs, const std::string& where,
                               data::TapReceiver* receiver);

  /// See Session::end_recording().
  std::vector<NodeTime> end_recording() { return session_->end_recording(); }

 private:
  friend class Branch;
  Stage() = default;

  Branch* branch_ = nullptr;
  std::size_t segment_ = 0;
  std::vector<std::string> inputs_;   // of the session
  std::vector<std::string> outputs_;  // of the session
  std::vector<std::string> extra_outputs_;
  std::vector<std::size_t> passing_;  // lanes with extra outputs that go past this segment
  Tapped taps_;
  std::string where_;
  std::shared_ptr<Session> session_;
};

/// A model on its way through a sweep. Weights of the model may change between loads, nodes may not.
class Branch {
 public:
  /// `model`, `types` and `spool` must outlive the branch; the spool may be null where there are no cuts.
  Branch(const Runtime& runtime, const onnx::Model& model, const graph::ValueTypes& types, const std::vector<int>& cuts,
         store::Spool* spool, BranchOptions options);

  const graph::Index& index() const noexcept { return index_; }
  std::size_t segments() const noexcept { return chain_.segments.size(); }

  /// `extra_outputs` are values that run() shall return as well: of the segment, or on their way past it to later ones.
  Stage load(std::size_t segment, const std::string& where, const std::vector<std::string>& extra_outputs = {});
  /// The segment for its taps alone: what it makes goes nowhere, so that it can be run again.
  Stage load_for_taps(std::size_t segment, const std::string& where);

  /// Initializers that the segment reads.
  std::vector<std::string> weights_of(std::size_t segment) const;

  /// Lets the spool read ahead for the samples [first, end) of a segment.
  void prefetch(std::size_t segment, std::size_t first, std::size_t end);
  /// Whether all that the segment reads, or hands on, is there for the sample.
  bool holds_inputs(std::size_t segment, std::size_t sample) const;
  bool holds_outputs(std::size_t segment, std::size_t sample) const;
  /// Whether all that earlier segments made for those behind this one is there for samples 0 to `samples`-1.
  bool holds_later(std::size_t segment, std::size_t samples) const;
  /// The sample is through the segment: what no later one needs goes. With `durable`, also what is on disk, which a
  /// resumed run may still want until this run's progress has been saved.
  void release(std::size_t segment, std::size_t sample, bool durable);
  /// All samples are through the segment.
  void finish(std::size_t segment);

 private:
  friend class Stage;
  using Values = std::unordered_map<std::string, data::Array>;

  std::vector<std::size_t> lanes_read_by(std::size_t segment) const;
  std::optional<std::size_t> lane_passing(std::size_t segment, const std::string& name) const;
  bool is_last_reader(std::size_t lane, std::size_t segment) const;
  Stage stage_of(std::size_t segment);
  Tapped taps_of(const graph::Segment& segment) const;
  std::shared_ptr<Session> make_session(const graph::Segment& segment, const Tapped& taps,
                                        const std::vector<std::string>& outputs, const std::string& where) const;
  std::shared_ptr<Session> session_for(Stage& stage, std::span<const data::Array> inputs);
  store::Record record(std::size_t lane, std::size_t sample);
  store::Record recompute(std::size_t lane, std::size_t sample);
  void store_outputs(std::size_t segment, std::size_t sample, const Values& values);

  const Runtime& runtime_;
  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  graph::Index index_;
  graph::Chain chain_;
  store::Spool* spool_;
  BranchOptions options_;
  std::vector<std::string> graph_inputs_;
  std::vector<store::Spool::Lane> lanes_;
  std::mutex recompute_mutex_;
  std::mutex ranks_mutex_;
  std::unordered_set<std::string> ranks_only_;  // values whose shape is another than the model states
};

// The runtime multiplies a single row by other code than several, which rounds otherwise: the same sample would then
// give other activations alone than in a batch.

/// Rewrites each product of matrices (Gemm; MatMul of two matrices, or of something of unknown rank with a matrix)
/// whose first factor may have a single row as -((-1) * A * B - C). Negation is exact, and the single-row code is only
/// used for a factor of 1. Names of values stay.
void make_batch_invariant(onnx::Model& model, const graph::ValueTypes& types);

}  // namespace detent::exec
