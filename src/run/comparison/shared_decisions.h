// Two forms of a model that take the same decisions while they run, so that their values can be compared one by one:
// the second one takes from the first what sizes follow from, and random numbers.
#pragma once

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "data/sample.h"
#include "data/tap.h"
#include "exec/session.h"
#include "graph/decisions.h"
#include "onnx/model.h"

namespace detent::run {

class SharedDecisions {
 public:
  /// Both models, whose values have the same names, get copies of what deciding nodes read. The nodes of the first must
  /// be in topological order.
  SharedDecisions(const exec::Runtime& runtime, onnx::Model& first, onnx::Model& second);

  /// Values to tap in both, in this order; none: nothing depends on decisions.
  const std::vector<std::string>& taps() const noexcept { return taps_; }
  /// What decisions are made from: see graph::Decisions::judged.
  const std::vector<std::string>& judged() const noexcept { return judged_; }
  /// Values within the first model that cannot be compared.
  const std::unordered_set<std::string>& apart() const noexcept { return apart_; }
  /// What there is to say.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// Of a run of the first model.
  void record(std::size_t tap, const data::TensorView& tensor);
  /// Of a run of the second one behind it, in a session of SessionOptions::edits.
  void apply_recorded(std::size_t tap, const data::TensorView& tensor) const;
  /// What was recorded of the last run, in the order of taps().
  std::vector<data::Array> recorded() const;
  /// What comes next is as that run was.
  void recall(std::vector<data::Array> recorded);

 private:
  void add_copies(const std::vector<graph::Operand>& operands, onnx::Model& first, onnx::Model& second);

  std::vector<std::string> taps_, judged_, notes_;
  std::unordered_set<std::string> apart_;
  mutable std::mutex mutex_;
  std::vector<data::Array> held_;
};

/// Receivers of runs whose only taps these are.
class DecisionRecorder final : public data::TapReceiver {
 public:
  explicit DecisionRecorder(SharedDecisions& decisions) : decisions_(decisions) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    decisions_.record(tap, tensor);
  }

 private:
  SharedDecisions& decisions_;
};

class DecisionPlayer final : public data::TapReceiver {
 public:
  explicit DecisionPlayer(const SharedDecisions& decisions) : decisions_(decisions) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    decisions_.apply_recorded(tap, tensor);
  }

 private:
  const SharedDecisions& decisions_;
};

/// How results of such a model are judged; empty where nothing is held.
std::vector<std::string> decision_notes(const onnx::Model& model, const graph::Decisions& decisions);

}  // namespace detent::run
