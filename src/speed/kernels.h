// Single operators of a model, timed in float and in integers as the deployed runtime runs them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "detent/config.h"
#include "exec/session.h"
#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "speed/kernel_table.h"

namespace detent::speed {

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
