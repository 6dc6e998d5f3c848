// The first remedy of the preset `balanced`: values whose channels differ so much that one scale does not serve them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/progress.h"
#include "detent/quantize.h"
#include "detent/resources.h"
#include "quantize/params.h"
#include "quantize/placement.h"
#include "run/prepare.h"

namespace detent::pipeline {

struct EqualizeOptions {
  QuantConfig config;
  Resources resources;
  std::filesystem::path directory;  // for working files
  std::filesystem::path weights;    // for rewritten weights, which the model refers to
  std::size_t samples = 1;          // that may be read, at the beginning of the source
  int threads = 0;
  /// Ranges of the activations, by the method asked for and by others.
  std::vector<calibration::Ranges> ranges;
  /// Scales and zero points of a placement.
  std::function<quantization::Params(const quantization::Placement&, const calibration::Ranges&)> params_of;
  Progress progress = {};
  std::stop_token stop = {};
};

struct ScaledValue {
  std::string name;  // in the rewritten model
  calibration::Range range;
  bool range_is_kept = false;  // it is the one that the value had
};

struct Equalization {
  std::vector<EqualizedValue> values;
  std::vector<ScaledValue> scaled;  // for each of them
};

/// Looks at the channels of the values that accuracy::equalizable() lists, runs the model with each of them and the
/// weights that read it rounded, both as they are, with the best of the ranges, and with channels made alike, and
/// rewrites the model where that takes away half of an error that matters. Takes about four inferences for each
/// sample.
Equalization equalize(run::Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                      data::SampleSource& source, const EqualizeOptions& options);

}  // namespace detent::pipeline
