// The measured part of the preset `balanced`: what does most harm stays in float.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/progress.h"
#include "detent/quantize.h"
#include "detent/resources.h"
#include "pipeline/prepare.h"
#include "quantize/params.h"

namespace detent::pipeline {

struct RefineOptions {
  QuantConfig config;
  AccuracyConfig accuracy;
  Resources resources;
  std::filesystem::path directory;  // for working files
  std::filesystem::path model;      // the float model, for the command
  std::uint64_t samples = 0;        // of the source
  std::size_t readable = 0;         // of them, those that can be read again, at the beginning; 0: all
  int threads = 0;
  /// Scales and zero points of a placement.
  std::function<quantization::Params(const quantization::Placement&)> params_of;
  /// Writes the model with the pairs of a placement.
  std::function<void(const quantization::Placement&, const std::filesystem::path&)> write;
  Progress progress = {};
  std::stop_token stop = {};
};

struct Refinement {
  quantization::Placement placement;
  AccuracyResult result;
};

/// Measures each mark of `placement` alone, and decides what stays in float: what reaches the target, or without one
/// what makes most of the error, up to a tenth of the multiplications. Takes at most ten times the inferences of the
/// samples, without a target five times; a command runs on up to 15 models. Throws bad_input when the command fails or
/// prints no number.
Refinement refine(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                  data::SampleSource& source, const RefineOptions& options);

}  // namespace detent::pipeline
