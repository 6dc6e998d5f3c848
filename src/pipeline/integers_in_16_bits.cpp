#include "pipeline/integers_in_16_bits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "onnx/write.h"
#include "pipeline/convert_floats.h"

namespace detent::pipeline {
namespace {

// Of the second half: what was asked of the first is done.
QuantizeOptions second_half(const Lowering& lowering) {
  const auto& whole = lowering.options;
  QuantizeOptions options;
  options.model = lowering.directory / "integers.onnx";
  options.output = whole.output;
  options.calibration_data = whole.calibration_data;
  options.samples = whole.samples;
  options.max_samples = whole.max_samples;
  options.batch_size = whole.batch_size;
  options.config.preset = "none";
  options.config.target = whole.config.target;
  options.config.float_type = whole.config.float_type;
  options.config.keep_io_types = whole.config.keep_io_types;
  options.external_data_threshold = whole.external_data_threshold;
  options.external_data_suffix = whole.external_data_suffix;
  options.resources = whole.resources;
  options.resources.work_dir = lowering.directory;
  options.resources.resume = false;
  options.resources.time_limit.reset();
  options.threads = whole.threads;
  options.workers = whole.workers;
  options.runtime = whole.runtime;
  options.progress = whole.progress;
  options.stop = whole.stop;
  return options;
}

}  // namespace

void write_in_16_bits(onnx::Model& quantized, const Lowering& lowering, QuantizeResult& result) {
  const auto options = second_half(lowering);
  onnx::write_model(quantized, options.model, {options.external_data_threshold});
  const auto converted =
      convert_floats(options, {.original = lowering.options.model, .in_float32 = lowering.in_float32});
  result.model_bytes_after = converted.model_bytes_after;
  result.floats = converted.floats;
  result.notes.insert(result.notes.end(), converted.notes.begin(), converted.notes.end());
  if (converted.accuracy) {
    if (!result.accuracy) result.accuracy.emplace();
    result.accuracy->samples = converted.accuracy->samples;
    result.accuracy->sample_names = converted.accuracy->sample_names;
    result.accuracy->sqnr_db = converted.accuracy->sqnr_db;
    result.accuracy->cosine = converted.accuracy->cosine;
    result.accuracy->worst_sample_db = converted.accuracy->worst_sample_db;
    result.accuracy->lost_channels = converted.accuracy->lost_channels;
    result.accuracy->rounded_db = converted.accuracy->rounded_db;
    result.notes.push_back(fmt::format("with 16-bit floats rounded as devices do, the worst output has {:.1f} dB on {}",
                                       converted.accuracy->rounded_db.value_or(converted.accuracy->sqnr_db),
                                       counted(converted.accuracy->samples, "sample")));
  }
  result.peak_memory = std::max(result.peak_memory, converted.peak_memory);
}

}  // namespace detent::pipeline
