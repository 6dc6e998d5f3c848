// From the model as read to a float model that is ready for calibration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"
#include "quantization/placement/value_kinds.h"

namespace detent::run {

/// Processor seconds of one run of the whole model on one thread; 0: not measured.
struct FormTimes {
  double chosen = 0;    // with what is faster in float left there
  double in_float = 0;  // all of it
  double dynamic = 0;   // with scales that are found while the model runs
};

/// Why a node computes in float although integers were possible.
enum class InFloat : std::uint8_t {
  faster,   ///< so, on this machine; unless the user names what is quantized
  unseen,   ///< no sample came to it, so that its values cannot be observed
  unequal,  ///< it joins values of very different size, or moves what was joined so
  inexact,  ///< the runtime was measured to compute it too far from the float model
};

/// What is settled of a node before its values are placed.
struct NodeChoice {
  std::optional<InFloat> in_float = {};
  bool wide = false;         // 16 bits, as it joins values of different size or moves them
  bool on_integers = false;  // an LSTM layer that nobody named, see recurrent_layers()
  bool stored = false;       // weights of 8 bits where it computes in float, see stored_layers(), stored_products()

  /// In float whatever the user names.
  bool keeps_in_float() const { return in_float && *in_float != InFloat::faster; }
};

struct Prepared : quantization::FloatModel {
  std::vector<std::string> notes = {};
  /// By Node::id(). The options and the operator decide of all others.
  std::map<std::string, NodeChoice> nodes = {};
  /// By Node::id(): the share of the model's time that a node on integers would add if it alone stayed in float as
  /// well. Only where speed on this machine counts.
  std::map<std::string, double> added_in_float = {};
  FormTimes times = {};
  /// Values that hold infinite numbers by the model's make: they stay in float.
  std::set<std::string> infinite = {};
  /// Constants that were computed as the transpose of another one, and that one.
  quantization::TransposedConstants transposed = {};
  /// Dimensions, in ascending order, of constants that were computed or are read by several nodes, for
  /// graph::deduplicate_constants().
  std::set<std::vector<std::int64_t>> shapes_stored_once = {};
  /// For graph::recompute_constants_at_load().
  graph::FoldedConstants folded = {};
  /// Gates that place_qdq_pairs() puts into integers; at first all of them, so that what is observed serves both forms.
  quantization::GateNames integer_gates = {};

  NodeChoice choice(const std::string& id) const {
    const auto found = nodes.find(id);
    return found == nodes.end() ? NodeChoice() : found->second;
  }
  bool keeps_in_float(const std::string& id) const { return choice(id).keeps_in_float(); }
  bool is_unseen(const std::string& id) const { return choice(id).in_float == InFloat::unseen; }
  /// By the first reason that holds in any case.
  void leave_in_float(const std::string& id, InFloat why) {
    if (!keeps_in_float(id)) nodes[id].in_float = why;
  }
};

/// Where rewritten weights go: small ones stay in memory, others into files of that name in a directory, whose owner
/// removes them.
graph::Store file_store(const std::filesystem::path& directory, std::string name);

/// What is known of types after a pass that changed something.
enum class TypesAfter : std::uint8_t {
  kept,      ///< all as before
  changed,   ///< they have to be inferred again
  inferred,  ///< the pass itself tells them
};

struct Preparation;  // what passes work on (prepare.cpp)

/// One step from the model as read to the float model that is quantized. It keeps the model's function.
struct Pass {
  std::string_view name;
  bool (*wanted)(const QuantConfig&);
  graph::Notes (*rewrite)(Preparation&);
  TypesAfter types = TypesAfter::kept;
};

/// All, in the order of execution.
std::span<const Pass> passes() noexcept;

struct PassControl {
  std::vector<std::string> skipped = {};                         // by name
  std::function<void(const Pass&, const Prepared&)> after = {};  // for tests: called after each that ran
};

/// Runs the passes that the format and the target ask for; each is a span in the profile. Rewritten weights are kept as
/// files in `work_dir`. Throws what the passes and the runtime throw, and usage for a name that no pass has.
Prepared prepare(onnx::Model model, const QuantConfig& config, const exec::Runtime& runtime,
                 const std::filesystem::path& work_dir, profile::Profiler& profiler, const graph::UnfoldLimits& limits,
                 const PassControl& control = {});

/// Nodes that 8 bits do not serve, and what becomes of them.
struct Fallbacks {
  AccuracyFallback to = AccuracyFallback::float32;
  std::vector<std::size_t> nodes = {};
};

/// Where Q/DQ pairs go under the preset. Operator types and nodes that the user named are taken as they are.
/// The gates given, if any are, have precedence over the model's own.
quantization::Placement place_qdq_pairs(const Prepared& prepared, const QuantConfig& config,
                                        const Fallbacks& fallbacks = {},
                                        const quantization::GateNames* integer_gates = nullptr);

}  // namespace detent::run
