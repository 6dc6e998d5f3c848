// The measured part of the preset `balanced`: what does most harm stays in float.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/statistics.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "pipeline/prepare.h"
#include "quantize/params.h"

namespace detent::pipeline {

struct RefineOptions {
  QuantConfig config;
  Resources resources;
  std::filesystem::path directory;  // for working files
  std::uint64_t samples = 0;        // of the source
  int threads = 0;
  Progress progress = {};
  std::stop_token stop = {};
};

/// What one quantized value does to the results of the model.
struct Sensitivity {
  std::string value;
  std::string node;  // that makes it, or reads it as a weight
  std::string kind;  // "weight", "activation"
  double error = 0;  // relative: mean over the outputs of the sum of squared differences over that of squares
};

struct Refinement {
  quantization::Placement placement;
  std::vector<Sensitivity> sensitivities;  // worst first
  double error_all = 0;                    // measured with every mark rounded, as the placement was given
  std::vector<std::string> notes;
};

/// Measures each mark of `placement` alone, and leaves in float the products that make most of the error, up to a tenth
/// of the multiplications. Takes at most four times the inferences of the samples.
Refinement refine(const Prepared& prepared, const quantization::Placement& placement,
                  const quantization::Params& params, const exec::Runtime& runtime, data::SampleSource& source,
                  const RefineOptions& options);

}  // namespace detent::pipeline
