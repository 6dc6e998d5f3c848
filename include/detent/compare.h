// Compares a quantized model with its float original on samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/options.h"

namespace detent {

using CompareOptions = Options;

/// The difference between a quantized value and the float one, over all samples.
struct Fidelity {
  std::string name;
  std::string made_by;  // the node in the float model that computes it
  double sqnr_db = 0;   // 10 log10(sum x^2 / sum (x-y)^2); infinite when equal
  double cosine = 0;    // of all elements as one vector; 1 when both are all zero
  double max_abs = 0;   // largest |x - y|
  /// As sqnr_db, of the sample that is farthest; unset: no sample has both a signal and an error.
  std::optional<double> worst_sample_db = {};
  /// For inner values: the likely reason and the option that helps; empty if there is no clear reason.
  std::string reason = {};
  std::string suggestion = {};
};

/// What a decoder and its quantized form, as deployed, make of text: over all positions whose next token is in the
/// samples.
struct NextTokens {
  std::uint64_t positions = 0;
  double float_perplexity = 0;  // exp(mean of -ln p(next token))
  double perplexity = 0;        // of the quantized model
  double agreement = 0;         // share of positions at which both find the same token the likeliest
  double kl_divergence = 0;     // mean over positions of sum p ln(p/q), in nats; p: float model, q: quantized model
};

/// The difference between a quantized model and its original.
struct Comparison {
  std::uint64_t samples = 0;
  std::vector<std::string> sample_names;  // the first 1,000, with the rows of parts: "a.npz[4:5]"
  /// Of decoders with a KV cache; nullopt of other models.
  std::optional<NextTokens> next_tokens;
  /// Measured as deployed: the quantized model runs with all of the runtime's optimizations.
  std::vector<Fidelity> outputs;
  /// Inner float values that both models have, worst SQNR first. For these the quantized model runs its Q/DQ pairs in
  /// float.
  std::vector<Fidelity> layers;
  std::vector<std::string> notes;
};

/// Runs both models on the samples. Throws Error; bad_input if the models have different inputs or outputs.
Comparison compare(const CompareOptions& options);

}  // namespace detent
