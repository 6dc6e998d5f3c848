#include "pipeline/blocks_in_16_bits.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/file.h"
#include "config/wanted.h"
#include "data/replay.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "pipeline/convert_floats.h"
#include "pipeline/deployed.h"
#include "pipeline/quantize_weights.h"
#include "run/outputs.h"

namespace detent::pipeline {

QuantizeResult quantize_weights_in_16_bits(const QuantizeOptions& options, calibration::Statistics* extremes) {
  run::check_output(options.output, onnx::read_model(options.model), options.external_data_suffix);
  const TempDir place(options.resources.work_dir.value_or(""));
  auto in_float32 = options;
  in_float32.config.float_type = FloatType::keep;
  std::optional<data::ReplayStream> kept;  // both halves read samples
  if (!config::reads_twice(options))
    in_float32.samples = &kept.emplace(*options.samples, data::ReplayStream::kAll, place.path());
  calibration::Statistics own;
  const BlocksRequest request{.file = place.path() / "blocks.onnx", .extremes = extremes != nullptr ? extremes : &own};
  auto result = quantize_weights(in_float32, request);
  auto rest = options;
  rest.samples = in_float32.samples;
  return convert_blocks(rest, *request.file, std::move(result), *request.extremes);
}

QuantizeResult convert_blocks(const QuantizeOptions& options, const std::filesystem::path& blocks,
                              QuantizeResult result, const calibration::Statistics& extremes) {
  auto floats = options;
  floats.model = blocks;
  floats.weights_only = {};
  floats.weights_only.rotation =
      is_rotated(options, result) ? Rotation::on : Rotation::off;  // which comparing has to know
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
