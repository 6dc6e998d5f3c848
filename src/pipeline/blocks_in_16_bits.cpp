#include "pipeline/blocks_in_16_bits.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/paths.h"
#include "config/derived.h"
#include "config/identity.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "pipeline/convert_floats.h"
#include "pipeline/deployed.h"
#include "pipeline/quantize_weights.h"
#include "run/outputs.h"
#include "run/run_directory.h"

namespace detent::pipeline {

// One directory for both halves, so that a process that is killed leaves nothing which the next does not find.
QuantizeResult quantize_weights_in_16_bits(const QuantizeOptions& options, calibration::Statistics* extremes) {
  const auto model = onnx::read_model(options.model);
  run::check_output(options.output, model, options.external_data_suffix);
  run::RunDirectory directory(options.resources, run::run_identity({.model = model,
                                                                    .output = options.output,
                                                                    .calibration_data = options.calibration_data,
                                                                    .options = config::run_identity(options)}));
  auto in_float32 = options;
  in_float32.config.float_type = FloatType::keep;
  in_float32.resources.work_dir = directory.path() / "first";
  paths::make_folder(*in_float32.resources.work_dir);
  calibration::Statistics own;
  const BlocksRequest request{.file = directory.scratch() / "blocks.onnx",
                              .extremes = extremes != nullptr ? extremes : &own};
  auto result = quantize_weights(in_float32, request);
  auto rest = options;
  rest.samples = in_float32.samples;
  rest.resources.work_dir = directory.scratch();
  result = convert_blocks(rest, *request.file, std::move(result), *request.extremes);
  // Of a run that begins, the first half says the same.
  if (!options.resources.resume)
    result.notes.insert(result.notes.begin(), directory.notes().begin(), directory.notes().end());
  directory.finish();
  return result;
}

QuantizeResult convert_blocks(const QuantizeOptions& options, const std::filesystem::path& blocks,
                              QuantizeResult result, const calibration::Statistics& extremes) {
  auto floats = options;
  floats.model = blocks;
  floats.weights_only = {};
  floats.config.preset = "none";
  // These say which weights become integers.
  auto& config = floats.config;
  for (auto* names : {&config.op_types, &config.exclude_op_types, &config.nodes, &config.exclude_nodes}) names->clear();
  floats.resources.resume = false;  // what takes long is done
  if (options.kv_cache.type != KvCacheType::keep) {
    if (auto reason = reason_against_running_cache(options, blocks, exec::Runtime(options.runtime)); !reason.empty()) {
      result.notes.push_back(std::move(reason));
      floats.calibration_data.reset();
      floats.samples = nullptr;
    }
  }
  if (floats.samples != nullptr) floats.samples->rewind();
  auto converted = convert_floats(floats, {.known = &extremes, .original = options.model});
  result.model_bytes_after = converted.model_bytes_after;
  result.floats = converted.floats;
  result.accuracy = converted.accuracy;
  result.notes.insert(result.notes.end(), converted.notes.begin(), converted.notes.end());
  result.stages.insert(result.stages.end(), converted.stages.begin(), converted.stages.end());
  result.peak_memory = std::max(result.peak_memory, converted.peak_memory);
  return result;
}

}  // namespace detent::pipeline
