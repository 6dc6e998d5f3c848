// What every emitter returns: the quantized model, and where in it each part of the float model went.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnx/model.h"
#include "quantization/pairs.h"

namespace detent::quantization {

/// Where a value or a constant of the float model is stored in the quantized one, by names there.
struct StoredTensor {
  std::string stored;                    // the integers: an initializer, or what a QuantizeLinear makes
  std::string scale;                     // initializer
  std::string zero_point;                // initializer
  std::string read_as;                   // the float value that readers of the integers see
  std::optional<Summation> paired = {};  // as of the mark
};

/// An int32 bias.
struct StoredBias {
  std::string stored;  // initializer
  std::string scale;   // initializer: input scale · weight scale
};

struct Provenance {
  std::map<std::string, StoredTensor> values;     // by name in the float model, constants among them
  std::map<std::size_t, StoredBias> biases;       // by node of the float model
  std::vector<std::optional<std::size_t>> nodes;  // for each node of the float model, where it is; unset: removed
};

struct Emitted {
  onnx::Model model;
  Provenance provenance;
  std::vector<std::string> notes;  // what could not be done as assigned
};

}  // namespace detent::quantization
