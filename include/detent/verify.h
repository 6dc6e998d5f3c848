// Shows, before deployment, what the program that will run a quantized model makes of it: beside the float model, and
// layer by layer beside an exact reference of its integers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/compare.h"
#include "detent/error.h"
#include "detent/latency.h"
#include "detent/options.h"

namespace detent {

/// A runtime other than ONNX Runtime. Its functions are called by one thread at a time.
class Consumer {
 public:
  virtual ~Consumer() = default;
  /// As in "OpenVINO 2026.4.1".
  virtual std::string name() const = 0;
  /// Makes one array for each output of the model that was loaded, in order, of one for each of its inputs, in order.
  using Run = std::function<std::vector<NamedArray>(std::span<const NamedArray>)>;
  /// Loads an ONNX file, which is gone later. Empty where the runtime does not take the model: a layer of its own is
  /// then left out, with a note.
  virtual Run load(const std::filesystem::path& model) = 0;
};

using VerifyOptions = Options;

/// A value that the consumer made of exactly what the reference made it of. In steps of its own scale; of a value that
/// is not quantized, in steps of 1/255 of its largest magnitude.
struct VerifiedLayer {
  std::string name;
  std::string made_by;  // the node that computes it, and its operator
  bool quantized = true;
  std::uint64_t elements = 0;  // compared, over all samples
  double max_steps = 0;        // the largest difference
  double share = 0;            // of the elements that differ; of a value that is not quantized, by a step or more
  double share_over_one = 0;   // of the elements that differ by more than one step
  /// Whether the reference is exact but for what float64 rounds away (docs/targets.md): else an operator of it ran in
  /// float32.
  bool exact = true;
  std::string reason;  // what is known to cause it; empty: nothing is
};

/// An output beside that of the float model.
struct VerifiedOutput {
  Fidelity reference;           // exact arithmetic on the model's integers
  Fidelity deployed;            // the consumer
  double consumer_sqnr_db = 0;  // of the consumer beside the reference
};

/// What a runtime makes of a quantized model.
struct Verification {
  std::string target;
  std::string target_reason;  // of "auto"
  std::string consumer;       // "ONNX Runtime 1.31.1, CPUExecutionProvider"
  std::uint64_t samples = 0;
  std::vector<VerifiedOutput> outputs;
  std::vector<VerifiedLayer> layers;  // worst first
  double max_steps = 0;               // of all layers
  /// Of the float and the quantized model; empty: not measured.
  std::vector<Latency> latency;
  std::vector<std::string> notes;
};

/// Runs both models on the samples, and each layer of the quantized one on its own. Throws Error.
Verification verify(const VerifyOptions& options);

}  // namespace detent
