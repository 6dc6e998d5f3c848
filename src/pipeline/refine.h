// The measured part of the preset `balanced`: what does most harm falls back to float, or to 16 bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "detent/progress.h"
#include "detent/quantize.h"
#include "detent/resources.h"
#include "quantize/params.h"
#include "run/prepare.h"

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
  calibration::Ranges ranges;  // of the activations
  /// Ranges by AccuracyConfig::other_methods.
  std::vector<std::pair<CalibrationMethod, calibration::Ranges>> other_ranges;
  /// Ranges for values of 16 bits, where AccuracyConfig::fallback asks for these.
  calibration::Ranges wide_ranges;
  /// Scales and zero points of a placement.
  std::function<quantization::Params(const quantization::Placement&, const calibration::Ranges&)> params_of;
  /// Writes the model with the pairs of a placement.
  std::function<void(const quantization::Placement&, const quantization::Params&, const std::filesystem::path&)> write;
  Progress progress = {};
  std::stop_token stop = {};
};

struct Refinement {
  quantization::Placement placement;
  calibration::Ranges ranges;
  AccuracyResult result;
  /// What makes most of the error that is left, worst first: shares of that error.
  std::vector<FallbackNode> worst;
};

/// Measures each mark of `placement` alone, tries other methods for the values that do most harm, and decides what
/// falls back: what reaches the target, or without one what makes most of the error, up to a tenth of the
/// multiplications. Takes about six inferences for each sample; a command runs on up to 15
/// models. Throws bad_input when the command fails or prints no number, and for a target out of reach.
Refinement refine(const run::Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                  data::SampleSource& source, const RefineOptions& options);

/// Whether results are so far from the float model's that more is worth its cost.
inline bool is_far(const AccuracyResult& result) { return result.sqnr_db < 30; }

/// A word about results that are far although nothing was asked for, and what helps; empty where there is none.
std::string what_is_left(const AccuracyResult& result, const AccuracyConfig& accuracy,
                         const std::vector<FallbackNode>& worst);

}  // namespace detent::pipeline
