// What one segment of a model takes in calibration, told for many segments quickly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/index.h"
#include "graph/liveness.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "planning/calibration.h"

namespace detent::planning {

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

}  // namespace detent::planning
