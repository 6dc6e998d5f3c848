// Where to cut a model so that calibration keeps to a budget.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/execution.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "planning/memory.h"

namespace detent::planning {

/// How a spool shares out what memory leaves for it.
struct SpoolMemory {
  std::uint64_t records = 0;  // for those that stay in memory
  std::uint64_t buffers = 0;  // for those on their way to disk and back
};

/// Room of which anything may go to disk: a quarter of it joins the buffers that the plan has `counted` already.
SpoolMemory split_budget(std::uint64_t room, std::uint64_t counted);

struct Budget {
  std::uint64_t memory = 0;
  std::uint64_t disk = 0;
  bool all_on_disk = false;    // memory level 2
  bool all_in_memory = false;  // memory level 0
  std::size_t segments = 0;    // at least; 0: as few as possible
};

struct SweepPlan {
  std::vector<int> cuts;            // positions between nodes, see graph::make_chain
  std::uint64_t memory = 0;         // resident at the peak, with tensors spooled in memory
  SpoolMemory spool;                // what the spool may take of it
  std::uint64_t spool_bytes = 0;    // most bytes spooled at one time
  std::uint64_t spool_traffic = 0;  // written and read in all
  std::uint64_t disk = 0;           // most bytes spooled on disk
};

/// The plan that moves the fewest bytes. `types` must be of static shapes, as for the samples at hand. Throws resource
/// naming the smallest budget that would do when this one cannot be met. `samples` is how many there are.
SweepPlan plan_sweep(const onnx::Model& model, const graph::ValueTypes& types, const std::vector<std::string>& observed,
                     const Circumstances& circumstances, std::uint64_t samples, const Budget& budget);

// What one segment of a model takes in calibration, told for many segments quickly.

/// Bytes; of one sample where they depend on samples.
struct SegmentCost {
  std::uint64_t weights = 0;      // mapped, and resident while the segment runs
  std::uint64_t anonymous = 0;    // all else, with the whole run's statistics
  std::uint64_t read_bytes = 0;   // values made before that it reads
  std::uint64_t write_bytes = 0;  // values that it makes for later ones

  std::uint64_t memory() const noexcept { return weights + anonymous; }
};

/// Walks over a model from any node on.
class SegmentWalk {
 public:
  /// nullopt when a shape is not static. The model and its tables must outlive the walk.
  static std::optional<SegmentWalk> make(const onnx::Model& model, const graph::Index& index,
                                         const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                         const Circumstances& circumstances);

  /// Begins a segment at a node.
  void begin(int node);
  /// Adds the next node; the cost of a segment that ends after it.
  SegmentCost step();

  int nodes() const noexcept { return static_cast<int>(nodes_.size()); }
  /// Bytes of one sample that are spooled at a cut: values made before it and read after it.
  std::uint64_t bytes_spooled_at(int cut) const { return waiting_[static_cast<std::size_t>(cut)]; }

 private:
  struct Value {
    std::uint64_t bytes = 0;
    int producer = -1;
    int last = -1;  // reader
    std::size_t block = 0;
  };
  struct Node {
    std::vector<std::size_t> reads;                              // values
    std::vector<std::size_t> makes;                              // values
    std::vector<std::pair<std::size_t, std::uint64_t>> weights;  // initializer, resident bytes
    std::uint64_t copies = 0;                                    // of weights, in another layout
    std::uint64_t workspace = 0;
    std::size_t taps = 0;
  };

  using Numbers = std::unordered_map<std::string, std::size_t>;  // of values, by name

  SegmentWalk() = default;
  Numbers add_values(const graph::Index& index, const graph::ValueTypes& types, const graph::Lifetimes& lives);
  void add_nodes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                 const std::vector<std::string>& observed, const graph::Lifetimes& lives, const Numbers& numbers);
  void sum_border();
  void enter(const Node& node);

  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<std::uint64_t> block_bytes_;
  std::vector<std::size_t> block_end_;
  std::vector<std::uint64_t> waiting_;
  std::uint64_t fixed_ = 0;
  std::uint64_t workers_ = 1;

  int first_ = 0;
  int next_ = 0;
  SegmentCost cost_;
  std::uint64_t alive_ = 0;
  std::uint64_t peak_ = 0;
  std::uint64_t session_ = 0;
  std::uint64_t copies_ = 0;
  int generation_ = 0;
  std::vector<int> seen_value_, seen_weight_, seen_block_;  // the generation of the segment that met them last
  std::vector<std::vector<std::size_t>> dying_;             // values that leave the border, by their last reader
};

// What a model takes whose forms, float and quantized, go through a sweep side by side.

/// The nodes [begin, end) that a stage runs.
struct StageNodes {
  int begin = 0;
  int end = 0;
};
using StagesOfForm = std::vector<StageNodes>;

struct SideBySide {
  std::vector<std::uint64_t> stages;  // bytes resident in each, with the spool's buffers
  std::uint64_t buffers = 0;          // of the spool, in all stages
};

/// Bytes resident while all forms, of as many stages each, are in stage i and take single samples through it: the
/// process, the stages, and what is on its way from one to another. Each form takes what the model would. nullopt when
/// a shape is not static.
std::optional<SideBySide> memory_side_by_side(const onnx::Model& model, const graph::ValueTypes& types,
                                              std::span<const StagesOfForm> forms);

}  // namespace detent::planning
