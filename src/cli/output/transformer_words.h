// What the commands say of a transformer.
#pragma once

#include <nlohmann/json.hpp>

#include "detent/transformer.h"

namespace detent::cli {

nlohmann::json transformer_json(const Transformer& transformer);
/// Layers that are alike in one line, and the ends.
void print_transformer(const Transformer& transformer);

}  // namespace detent::cli
