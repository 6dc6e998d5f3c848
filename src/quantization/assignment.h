// What becomes of each value, weight and node of a float model: the one thing that placers and calibration propose,
// remedies and solvers improve, emitters write and reports tell.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "calibration/methods.h"
#include "calibration/statistics.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/formats.h"
#include "quantization/placement/placement.h"
#include "quantization/weights.h"

namespace detent::quantization {

/// The range of an activation and where it comes from: the name of a calibration method, "given" by an override, or
/// "operator" where it follows from that.
struct ActivationRange {
  calibration::Range range;
  std::string origin;
};
using ActivationRanges = std::map<std::string, ActivationRange>;

/// What the scales of a marked constant follow from.
struct ConstantScan {
  std::vector<calibration::KeyRange> extremes;  // of each slice
  std::vector<float> pair_scales;               // of each slice, where the mark is paired
};
using ConstantScans = std::unordered_map<std::string, ConstantScan>;

/// What calibration proposes. Ranges are by value, and cover activations only.
struct Proposals {
  ActivationRanges ranges;  // by the method asked for, or what a remedy put in its place
  /// By other methods that may be tried.
  std::vector<std::pair<CalibrationMethod, ActivationRanges>> others;
  ActivationRanges wide;  // for values of 16 bits, where some may become so
  ConstantScans constants;
};

/// What one value or weight is stored as.
struct ValueAssignment {
  QuantType type = QuantType::uint8;
  Granularity granularity;
  std::vector<ScaleZeroPoint> slices;  // one for each slice that the granularity cuts: one for the whole tensor
  std::string source;                  // the value whose scale and zero point these are: itself unless shared
  /// What they come from; of weights with several slices, that of the first.
  calibration::Range range;
  std::string origin;  // of the range; empty for constants
};
using AssignedValues = std::unordered_map<std::string, ValueAssignment>;

/// What the runtime that pairs are written for needs around them, see emit/barriers.h and emit/integer_operators.h.
struct RuntimeForms {
  bool barriers = false;       // or it rounds what stays in float
  bool hard_sigmoids = false;  // as sums that saturate
  bool one_width = false;      // of activations around each operator
  bool htp = false;            // what config::Target::htp_rewrites stands for
};

/// A cache of keys and values: the scales of each graph::cached_attentions(), in their order.
struct CacheAssignment {
  KvCacheConfig config = {};
  std::vector<KvScales> scales = {};
};

/// All that an emitter asks for beside the float model. Each reads what its form has and leaves the rest alone.
struct Assignment {
  Placement placement = {};
  AssignedValues values = {};           // marks that have no entry stay in float
  std::vector<std::string> notes = {};  // what stays in float although it is marked, with the reason
  RuntimeForms runtime = {};
  BlockFloat block_float = BlockFloat::none;  // that marks are rounded to
  BlockAssignment blocks = {};
  CacheAssignment cache = {};
};

/// What placers look at and emitters rewrite. Without types emitters do less for runtimes.
struct FloatModel {
  onnx::Model model;
  graph::ValueTypes types = {};
};

/// Reads all marked constants once. Throws bad_input naming tensor and reader for NaN or infinite weights; with
/// `allow_nonfinite`, and where no product reads it, such constants are taken out of the placement and noted instead.
ConstantScans scan_weights(const onnx::Model& model, Placement& placement, bool allow_nonfinite);

/// Lets constants that hold masks go no lower than these ranges (placement/value_kinds.h) do, in the model and where
/// its constants were scanned. The integers of what they are added to end there: beside steps of -10000 the HTP makes a
/// sum of scores as coarse.
void narrow_masks(const calibration::Ranges& ranges, const Placement& placement, onnx::Model& model,
                  ConstantScans& constants);

/// Gives values that share a scale under `placement` the range of the value that they share it with, for placements
/// under which they no longer do.
void copy_shared_ranges(const Placement& placement, ActivationRanges& ranges);

/// Scales and zero points of all marks that can have them. Values without a range (never produced, or always empty) and
/// those that share with one are left out and noted.
Assignment assign(const onnx::Model& model, Placement placement, const Proposals& proposals, const QuantConfig& config);

/// What a marked activation is stored as that has this range and shares it with no other.
ValueAssignment assign_activation(const Mark& mark, const ActivationRange& range, const QuantConfig& config);

/// What a marked constant is stored as.
ValueAssignment assign_constant(const Mark& mark, const ConstantScan& scan, const QuantConfig& config);

ConstantScan scan_constant(const onnx::Tensor& tensor, const Mark& mark);

/// The type of a marked value.
QuantType type_of(const Mark& mark, const QuantConfig& config);

/// The format that a marked constant gets.
WeightFormat constant_format(const Mark& mark, const QuantConfig& config);

/// Of twice, once, half, a quarter and an eighth of its scale a constant with one scale gets that with the least
/// squared error, of equal ones the largest; only where the target wants the nearest powers of two.
void search_power_of_two(const onnx::Tensor& constant, const Mark& mark, const QuantConfig& config,
                         ValueAssignment& assignment);

// From statistics to the ranges of all activations that get quantized.

struct RangeOptions {
  MethodConfig method;
  std::vector<TensorOverride> overrides;
  std::size_t threads = 1;
  /// What the readers of an activation make of it, where that is known.
  std::map<std::string, calibration::Response> consumer_functions = {};
  /// Ranges that follow from what reads the values, see value_kinds.h; the user's word comes before them.
  calibration::Ranges known = {};
};

/// Ranges by value: what the user gave, what follows from the operator, or what the method finds. Values of which
/// nothing was seen are left out. Throws usage for options that make no sense or overrides that match no activation,
/// bad_input naming the tensor when the statistics lack it or what the method needs.
ActivationRanges find_ranges(const Placement& placement, const calibration::Statistics& statistics,
                             const QuantConfig& config, const RangeOptions& options);

/// Whether any tensor's method asks for histograms, or for votes on power-of-two scales.
bool needs_histograms(const RangeOptions& options);
bool needs_votes(const QuantConfig& config, const RangeOptions& options);

}  // namespace detent::quantization
