// Folders in which models come and are run from: those of onnxruntime-genai (model.onnx, genai_config.json, tokenizer)
// and of optimum and transformers.js (config.json, onnx/model.onnx).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/folder.h"
#include "detent/quantize.h"

namespace detent::run {

/// A folder and the model in it that is quantized. Paths are relative to the root.
struct ModelFolder {
  std::filesystem::path root;
  std::filesystem::path model;
  /// Everything else but hidden files: what goes with the model.
  std::vector<std::filesystem::path> others;
  /// The same model in other precisions (transformers.js: model_q4.onnx, …), which a result has no use for.
  std::vector<std::filesystem::path> variants;
};

/// Throws bad_input when no single model stands out.
ModelFolder read_model_folder(const std::filesystem::path& root);

/// `given`, or the model in it when it is a folder.
std::filesystem::path model_file(const std::filesystem::path& given);

/// The result's folder: the model is written to where options() say, then finish() adds the other files, corrects the
/// configuration and puts the folder in place. Without finish() nothing is left.
class FolderResult {
 public:
  /// Throws usage when the output cannot be a new folder.
  explicit FolderResult(const QuantizeOptions& options);

  /// Of a run from file to file inside the folders.
  const QuantizeOptions& options() const noexcept { return options_; }
  void finish(QuantizeResult& result);

 private:
  ModelFolder folder_;
  AtomicFolder output_;
  QuantizeOptions options_;
};

}  // namespace detent::run
