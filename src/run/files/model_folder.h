// Folders in which models come and are run from: those of onnxruntime-genai (model.onnx, genai_config.json, tokenizer)
// and of optimum and transformers.js (config.json, onnx/model.onnx).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
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
  /// What is not copied either: links to folders or to nothing, pipes, sockets, devices.
  std::vector<std::filesystem::path> no_files;
};

/// Throws bad_input when no single model stands out.
ModelFolder read_model_folder(const std::filesystem::path& root);

/// `given`, or the model in it when it is a folder.
std::filesystem::path model_file(const std::filesystem::path& given);

/// One of several models that are made of one.
struct Variant {
  std::string name;    // as programs call it; empty: it is the only one
  std::string suffix;  // that its file's name gets
};

/// A result that is a folder: models are written to where options() say, then finish() adds the other files, corrects
/// the configuration and puts the folder in place. Without finish() nothing is left.
class FolderResult {
 public:
  /// Of QuantizeOptions::model, a file or a folder. Several variants lie beside each other in one folder, or, where the
  /// configuration names one model (onnxruntime-genai), in folders of their own with all other files. Throws usage when
  /// the output cannot be a new folder, and bad_input where a file that would be copied lies elsewhere
  /// (base/folder.h).
  explicit FolderResult(const QuantizeOptions& options, std::vector<Variant> variants = {{}});

  /// Of a run from file to file inside the folders.
  QuantizeOptions options(std::size_t variant = 0) const;
  /// Where a variant will be after finish().
  std::filesystem::path place(std::size_t variant) const { return target_ / file_of(variant); }
  /// Notes on what was copied and left out are added.
  void finish(std::vector<std::string>& notes);

 private:
  bool in_own_folders() const { return is_genai_ && !variants_.front().name.empty(); }
  std::filesystem::path file_of(std::size_t variant) const;
  std::shared_ptr<const MappedFile> open(const std::filesystem::path& file) const {
    return boundary_.open(file, "file of the model's folder");
  }
  void copy_others(const std::filesystem::path& to) const;
  void check_config() const;
  void correct_config() const;

  ModelFolder folder_;
  std::vector<Variant> variants_;
  bool is_genai_ = false;
  std::filesystem::path target_;
  AtomicFolder output_;
  Boundary boundary_;
  QuantizeOptions options_;
};

/// The object in a file, its members in their order. Throws bad_input when there is none.
nlohmann::ordered_json read_json(const std::filesystem::path& path);

/// A model that a run has written.
struct WrittenModel {
  std::string file;         // "model_q4.onnx"
  std::string dtype;        // as transformers.js calls it
  bool has_data = false;    // "model_q4.onnx_data" beside it
  bool half_cache = false;  // past keys and values are float16
};

/// Corrects `use_external_data_format` and `kv_cache_dtype`. The first stays one flag where there is one model; with
/// several it says for each file whether it has data. `others` are the names of models that were copied.
void correct_transformers_config(const std::filesystem::path& config, const std::vector<WrittenModel>& models,
                                 const std::vector<std::string>& others);

}  // namespace detent::run
