#include "pipeline/blocks_in_16_bits.h"

#include <algorithm>

#include "base/file.h"
#include "config/wanted.h"
#include "onnx/model.h"
#include "pipeline/convert_floats.h"
#include "pipeline/quantize_weights.h"
#include "run/outputs.h"

namespace detent::pipeline {

QuantizeResult quantize_weights_in_16_bits(const QuantizeOptions& options) {
  run::check_output(options.output, onnx::read_model(options.model), options.external_data_suffix);
  const TempDir place(options.resources.work_dir.value_or(""));
  auto in_float32 = options;
  in_float32.config.float_type = FloatType::keep;
  calibration::Statistics extremes;
  const BlocksRequest request{.file = place.path() / "blocks.onnx", .extremes = &extremes};
  auto result = quantize_weights(in_float32, request);
  auto converted = convert_blocks(options, *request.file, config::has_samples(options) ? &extremes : nullptr);
  result.model_bytes_after = converted.model_bytes_after;
  result.floats = converted.floats;
  result.notes.insert(result.notes.end(), converted.notes.begin(), converted.notes.end());
  result.stages.insert(result.stages.end(), converted.stages.begin(), converted.stages.end());
  result.peak_memory = std::max(result.peak_memory, converted.peak_memory);
  return result;
}

QuantizeResult convert_blocks(const QuantizeOptions& options, const std::filesystem::path& blocks,
                              const calibration::Statistics* extremes) {
  auto floats = options;
  floats.model = blocks;
  floats.weights_only = {};
  floats.config.preset = "none";
  // These say which weights become integers.
  for (auto* names :
       {&floats.config.op_types, &floats.config.exclude_op_types, &floats.config.nodes, &floats.config.exclude_nodes})
    names->clear();
  floats.resources.resume = false;  // what takes long is done
  if (extremes == nullptr) {
    floats.calibration_data.reset();
    floats.samples = nullptr;
  }
  return convert_floats(floats, extremes);
}

}  // namespace detent::pipeline
