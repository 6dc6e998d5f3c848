// Lists the operators, shapes, parameters and activation sizes of a model without running it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/options.h"
#include "detent/transformer.h"

namespace detent {

using InspectOptions = Options;

/// An input or output of a model.
struct ValueReport {
  std::string name;
  std::string type;   // "float32", …; "" if it is not a tensor
  std::string shape;  // "[1,3,224,224]" with '?' or a symbol for dynamic axes
};

/// A node of a model.
struct LayerReport {
  std::string name;
  std::string op_type;
  std::uint64_t parameters = 0;  // elements of the constants that the layer reads
  std::uint64_t parameter_bytes = 0;
  std::optional<std::uint64_t> activation_bytes;  // of its outputs; unset if a shape is unknown
  /// Multiply-accumulates and all arithmetic operations (2 per MAC) of one run; unset if a shape is unknown.
  std::optional<std::uint64_t> macs, flops;
  std::string output_shape;  // of the first output
  /// Memory for fine-tuning the layer (adaround with its defaults), without its spooled samples; unset for layers that
  /// cannot be tuned.
  std::optional<std::uint64_t> finetune_bytes;
};

/// A product, a recurrent net or a table of a quantized model, and what the runtime runs in its place.
struct QuantizedProduct {
  std::string name;
  std::string op_type;
  std::string runs_as;    // the type of the runtime's operator; "" where it has become part of another one
  bool in_float = false;  // the runtime dequantizes its operands and computes in float
};

/// The layers and sizes of a model.
struct Inspection {
  std::int64_t ir_version = 0;
  std::map<std::string, std::int64_t> opsets;  // by domain, "" for ONNX
  std::vector<ValueReport> inputs, outputs;
  std::map<std::string, std::size_t> op_types;
  std::vector<LayerReport> layers;      // in graph order
  std::optional<std::size_t> heaviest;  // index of the layer with the most parameter and activation bytes
  std::uint64_t parameters = 0;         // of the whole model, each constant counted once
  std::uint64_t parameter_bytes = 0;
  std::optional<std::uint64_t> activation_bytes;  // sum over layers; unset if any is unknown
  std::optional<std::uint64_t> macs;              // likewise
  /// Largest total of the activations that are alive at one time, for the order of nodes in the file and the usual
  /// reuse of memory; unset as above. `peak_at`: index of the layer that runs then.
  std::optional<std::uint64_t> peak_activation_bytes;
  std::optional<std::size_t> peak_at;
  /// Nodes that read what a DequantizeLinear makes, and operators on integers; in graph order. Empty where there are
  /// none, or where the runtime's own graph could not be had, of which a note tells.
  std::vector<QuantizedProduct> products;
  std::string runtime;                          // the version that was asked
  std::optional<Transformer> transformer = {};  // what the model has of one
  std::vector<std::string> notes;
};

/// Reads the model and runs nothing. Throws Error.
Inspection inspect(const InspectOptions& options);

}  // namespace detent
