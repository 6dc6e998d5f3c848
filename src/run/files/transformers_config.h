// What transformers.js has to be told of the models in a folder, in its config.json.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace detent::run {

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

/// Whether the decoder in this file has a cache of float16.
bool has_half_cache(const std::filesystem::path& model);

}  // namespace detent::run
