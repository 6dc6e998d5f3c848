// The files that a run reads and will write, and checks of them made before anything else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "run/comparison/proof.h"

namespace detent::run {

/// Throws usage when `output` is no name of a file, or its directory cannot be written.
void check_place(const std::filesystem::path& output);

/// Throws usage when writing `output` (or the data file whose name is that and `data_suffix`) would overwrite a file
/// that the model is read from, when what stands there is no regular file or its directory cannot be written.
void check_output(const std::filesystem::path& output, const onnx::Model& model, const std::string& data_suffix = {});

/// check_output() of the model that a run of quantize() writes and of the file with the scales of its cache; throws
/// usage also where something else than such a file stands there.
void check_outputs(const QuantizeOptions& options, const onnx::Model& model);

/// All files that a run of quantize() may write, but data files with names of their own.
std::vector<std::filesystem::path> written_files(const QuantizeOptions& options);

/// Writes the model to QuantizeOptions::output once it has passed, and tells its size and what the proof notes. Null: a
/// file that the run itself reads on. Throws what Prover throws.
void write_output(onnx::Model& model, const QuantizeOptions& options, Prover* prove, QuantizeResult& result);

/// Of the model's file and the tensors in its data files, in bytes.
std::uint64_t size_on_disk(const onnx::Model& model);

/// Throws usage when a file that a run will write cannot be written, two of them are one, or one of them is a
/// calibration sample or `read`.
void check_apart(const std::vector<std::filesystem::path>& written, const std::optional<std::filesystem::path>& samples,
                 const std::optional<std::filesystem::path>& read = {});

}  // namespace detent::run
