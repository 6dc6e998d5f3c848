// Results as the commands print them with --json, and the words that they share.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/output/output.h"
#include "config/option.h"
#include "config/results.h"
#include "detent/quantize.h"
#include "detent/transformer.h"

namespace detent::cli {

/// An error as a share of the signal, as the signal to quantization noise ratio in dB.
inline double in_db(double error) { return -10 * std::log10(error); }

/// What became of --set rotation=auto; errors as in RotatedStream.
inline std::string rotation_words(bool kept, double error_before, double error_after) {
  return fmt::format("rotation: {}, SQNR of the worst output on held-back samples {:.2f} dB without, {:.2f} dB with it",
                     kept ? "kept" : "left out", in_db(error_before), in_db(error_after));
}

/// Prints all members of a result if the user wants them.
template <class Result>
bool print_members(const config::CommandLine& line, const Result& result) {
  if (line.json_members) print_json(config::members_json(result));
  return line.json_members;
}

nlohmann::json transformer_json(const Transformer& transformer);
/// Layers that are alike in one line, and the ends.
void print_transformer(const Transformer& transformer);

/// What `detent quantize --json` prints.
nlohmann::json quantize_json(const QuantizeOptions& options, const QuantizeResult& result);

/// Whether roundings were measured and acted on; without, there is only what came of them.
bool has_remedies(const QuantizeOptions& options, const QuantizeResult& result);

}  // namespace detent::cli
