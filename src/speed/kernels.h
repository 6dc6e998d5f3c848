// Single operators of a model, timed in float and in integers as the deployed runtime runs them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/config.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::speed {

/// Seconds of one run of an operator, one thread.
struct KernelTimes {
  double in_float = 0;
  double in_integers = 0;
  double quantize = 0;    // of all float activations that the integer form reads
  double dequantize = 0;  // of what it makes
  // Of the form in float: of changing what it reads into the runtime's blocked layout, and what it makes back.
  double into_blocks = 0;
  double out_of_blocks = 0;
};

/// Which nodes of a model stay in float, as whole models were timed; see run/model/speed_trials.h.
struct ModelChoice {
  std::vector<std::string> in_float;  // by Node::id()
  double seconds = 0;                 // with these in float
  double seconds_on_integers = 0;     // with none
  double seconds_in_float = 0;        // with all; 0: whole models were not timed
  double seconds_dynamic = 0;         // with scales that are found while the model runs; 0: not timed
  /// Seconds that each node on integers would add if it alone stayed in float as well, by Node::id(); none for nodes
  /// that would add nothing.
  std::map<std::string, double> added = {};
};

/// As JSON; times to the hundredth of a microsecond.
std::string text_of(const ModelChoice& choice);
/// Nothing where the text is none of text_of().
std::optional<ModelChoice> choice_of(const std::string& text);

/// Times by operator: type, shapes and attributes as one line of text; and what was chosen for whole models.
class KernelTable {
 public:
  /// Reads the file. No such file, or no path: an empty table. Throws bad_input for a file that is none of detent's.
  explicit KernelTable(std::optional<std::filesystem::path> file);

  /// Null: not in the table.
  const KernelTimes* find(const std::string& kernel) const;
  /// What is there stays as it is.
  void add(const std::string& kernel, const KernelTimes& times) { times_.try_emplace(kernel, times); }

  /// Null: not in the table.
  const ModelChoice* find_choice(const std::string& model) const;
  void add_choice(const std::string& model, const ModelChoice& choice) { choices_.try_emplace(model, choice); }

  /// Adds what it holds to the file. What another process has added in the meantime wins, so that all decide alike.
  /// Throws usage when the file cannot be written, or another process holds it for ten seconds.
  void save(const std::stop_token& stop);

 private:
  void read();
  void write();

  std::optional<std::filesystem::path> file_;
  std::map<std::string, KernelTimes> times_;
  std::map<std::string, ModelChoice> choices_;
};

/// The table of this machine and this version of ONNX Runtime, in $XDG_CACHE_HOME/detent or ~/.cache/detent. Unset:
/// there is no such folder.
std::optional<std::filesystem::path> default_kernel_table(const std::string& runtime_version);

/// A model, with the shapes that its values have in deployment, and how its integer forms are to be written.
struct TimedModel {
  const onnx::Model& model;
  const graph::Index& index;
  const graph::ValueTypes& types;
  const QuantConfig& config;
};

/// Type, shapes and attributes of a node as one line: what its times are kept by. Empty where it cannot be timed: a
/// shape is not static; and for all but products, LSTM layers and arithmetic on elements, which take next to nothing in
/// either form, or run within the operator before them, as a Relu does.
std::string kernel_table_key(const TimedModel& subject, std::size_t node);

/// The same of a table (a Gather of constant rows), which is timed with two of its rows. Empty for all other nodes.
std::string lookup_key(const TimedModel& subject, std::size_t node);

/// Runs the node alone, with its own weights and made-up activations, in float and between QuantizeLinear and
/// DequantizeLinear (an LSTM with scales that are found while it runs), on one thread. Changes of layout count as part
/// of the conversions. `directory` is for working files. Throws what Session throws.
KernelTimes time_kernel(const TimedModel& subject, std::size_t node, const exec::Runtime& runtime,
                        const std::filesystem::path& directory, std::stop_token stop);

/// Seconds of all kernels of the model that `make` makes of the node alone, on one thread.
double time_form(const TimedModel& subject, std::size_t node, const std::function<onnx::Model(onnx::Model alone)>& make,
                 const exec::Runtime& runtime, const std::filesystem::path& directory, std::stop_token stop);

}  // namespace detent::speed
