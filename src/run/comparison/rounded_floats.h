// Models of 16-bit floats as devices with such kernels run them. The runtime's CPU computes float16 nodes in float32,
// so that overflow and lost digits do not show there, and has no bfloat16 at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sample.h"
#include "data/tap.h"
#include "detent/config.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::run {

/// Values that nodes make in 16-bit types, with the type of each.
using LowValues = std::vector<std::pair<std::string, FloatType>>;

/// Brings all 16-bit floats of a model but for its inputs and outputs to float32, and its constants into files of a
/// directory; tells which values of the model, as it is then, had such a type. The model must be unfolded
/// (onnx/bodies.h), with its constants as initializers.
LowValues raise_for_rounding(onnx::Model& model, const exec::PortsOf& ports_of, const std::filesystem::path& directory);

/// A session in which such values are rounded to their type where they are made.
class RoundedSession {
 public:
  /// `taps`: values that the receivers of runs get, in this order; those that are rounded, as they are then.
  RoundedSession(const exec::Runtime& runtime, const onnx::Model& model, const LowValues& low,
                 const std::vector<std::string>& taps, const std::string& where, exec::SessionOptions options);
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where,
                               data::TapReceiver* receiver = nullptr);

  /// Values that held finite numbers beyond their type, in the order of LowValues.
  std::vector<std::string> overflows() const;

 private:
  struct Tap {
    std::string value;
    std::optional<FloatType> type = {};        // rounded to this
    std::optional<std::size_t> position = {};  // among those that receivers get
    std::size_t overflows = 0;
  };
  class Receiver;

  static std::vector<Tap> all_taps(const LowValues& low, const std::vector<std::string>& taps);
  static exec::SessionOptions with_edits(exec::SessionOptions options, bool edits);

  std::vector<Tap> taps_;
  exec::Session session_;
};

/// What is to be said of such a run; empty where nothing is rounded.
std::vector<std::string> rounding_notes(const LowValues& low, const std::vector<std::string>& overflows);

}  // namespace detent::run
