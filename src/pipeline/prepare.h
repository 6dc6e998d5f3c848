// From the model as read to a float model that is ready for calibration.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "quantize/placement.h"

namespace detent::pipeline {

struct Prepared {
  onnx::Model model;
  graph::ValueTypes types;
  std::vector<std::string> notes;
};

/// Where rewritten weights go: small ones stay in memory, others into files of that name in a directory, whose owner
/// removes them.
graph::Store file_store(const std::filesystem::path& directory, std::string name);

/// Applies the graph rewrites; `needed_opset` is what the quantized form asks for. Rewritten weights are kept as files
/// in `work_dir`. Throws what the rewrites and the runtime throw.
Prepared prepare(onnx::Model model, std::int64_t needed_opset, const exec::Runtime& runtime,
                 const std::filesystem::path& work_dir, profile::Profiler& profiler);

/// Nodes that 8 bits do not serve, and what becomes of them.
struct Fallbacks {
  AccuracyFallback to = AccuracyFallback::float32;
  std::vector<std::size_t> nodes = {};
};

/// Where Q/DQ pairs go under the preset. Operator types and nodes that the user named are taken as they are.
quantization::Placement place(const Prepared& prepared, const QuantConfig& config, const Fallbacks& fallbacks = {});

/// The inputs that a caller has to feed.
std::vector<data::InputSpec> input_specs(const onnx::Model& model);

/// Samples from the path or the stream, whichever is given. Throws usage unless it is exactly one.
std::unique_ptr<data::SampleSource> open_samples(const std::filesystem::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& options);

/// Throws usage when writing `output` (or the data file beside it) would overwrite a file that the model is read from,
/// or when its directory cannot be written.
void check_output(const std::filesystem::path& output, const onnx::Model& model);

/// Throws usage when two of the files that a run will write are one, or one of them is a calibration sample or `read`.
void check_apart(const std::vector<std::filesystem::path>& written, const std::optional<std::filesystem::path>& samples,
                 const std::optional<std::filesystem::path>& read = {});

}  // namespace detent::pipeline
