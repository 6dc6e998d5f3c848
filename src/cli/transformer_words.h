// What the commands say of a transformer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "detent/transformer.h"

namespace detent::cli {

nlohmann::json transformer_json(const Transformer& transformer);
/// Layers that are alike in one line, and the ends.
void print_transformer(const Transformer& transformer);
/// What became of --rotation auto; errors as in RotatedStream.
std::string rotation_words(bool kept, double error_before, double error_after);

}  // namespace detent::cli
