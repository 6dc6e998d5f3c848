#include "run/model_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/failure.h"
#include "base/small_file.h"
#include "onnx/model.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kGenaiConfig = "genai_config.json";
// What transformers.js appends to a model's name for each of its dtypes, and optimum for some (src/utils/dtypes.js).
const std::set<std::string> kVariants{"_fp16", "_int8", "_uint8", "_q4", "_q4f16", "_q8", "_bnb4", "_quantized"};

Json read_json(const fs::path& path) {
  auto json = Json::parse(read_small_file(path, "configuration"), nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw bad_input(fmt::format("'{}' is not a JSON object", path.string()));
  return json;
}

// Regular files, relative to the root, in order. Hidden ones are a download tool's or an editor's.
std::vector<fs::path> files_of(const fs::path& root) {
  std::vector<fs::path> files;
  std::error_code failed, ignored;
  for (fs::recursive_directory_iterator entry(root, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (entry->path().filename().string().starts_with(".")) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored)) {
      files.push_back(entry->path().lexically_relative(root));
    }
  }
  if (failed)
    throw failed_call(failed.value(), fmt::format("cannot list folder '{}'", root.string()), ErrorKind::bad_input);
  std::sort(files.begin(), files.end());
  return files;
}

fs::path model_of_genai(const fs::path& root) {
  const fs::path path = root / kGenaiConfig;
  const auto config = read_json(path);
  const Json model = config.value("model", Json());
  const Json decoder = model.is_object() ? model.value("decoder", Json()) : Json();
  if (!decoder.is_object() || decoder.contains("pipeline") || !decoder.contains("filename") ||
      !decoder["filename"].is_string()) {
    throw bad_input(fmt::format("'{}' names no single decoder model", path.string()), "give the model's file itself");
  }
  return fs::path(decoder["filename"].get<std::string>()).lexically_normal();
}

bool is_variant(const fs::path& candidate, const fs::path& model) {
  const auto name = candidate.stem().string(), base = model.stem().string();
  return candidate.extension() == ".onnx" && candidate.parent_path() == model.parent_path() && name.starts_with(base) &&
         kVariants.contains(name.substr(base.size()));
}

// A model that is no other precision of one beside it.
fs::path only_model(const fs::path& root, const std::vector<fs::path>& files) {
  std::vector<fs::path> models;
  std::copy_if(files.begin(), files.end(), std::back_inserter(models),
               [](const auto& file) { return file.extension() == ".onnx"; });
  for (const char* usual :
       {"onnx/model.onnx", "model.onnx", "onnx/decoder_model_merged.onnx", "decoder_model_merged.onnx"}) {
    if (std::binary_search(models.begin(), models.end(), fs::path(usual))) return usual;
  }
  if (models.size() == 1) return models.front();
  std::vector<std::string> names(models.size());
  std::transform(models.begin(), models.end(), names.begin(), [](const auto& model) { return model.string(); });
  if (models.empty())
    throw bad_input(fmt::format("'{}' is a directory that holds no ONNX model", root.string()),
                    "give a model's file, or the folder that it is in");
  throw bad_input(fmt::format("folder '{}' holds several models: {}", root.string(), fmt::join(names, ", ")),
                  "give the file of one of them");
}

// The files that external data of a model lie in, with every link resolved.
std::set<fs::path> data_files(const onnx::Model& model) {
  std::set<fs::path> files;
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) files.insert(tensor.data.file()->path());
  }
  return files;
}

// transformers.js has to be told of a data file, by a flag or per model file.
void correct_transformers_config(const fs::path& path, const std::string& model, bool has_data) {
  auto config = read_json(path);
  Json settings = config.value("transformers.js_config", Json::object());
  if (!settings.is_object()) return;
  const auto before = settings.dump();
  Json& external = settings["use_external_data_format"];
  if (external.is_object()) {
    external[model] = has_data;
  } else if (has_data || !external.is_null()) {
    external = has_data;
  } else {
    settings.erase("use_external_data_format");
  }
  if (settings.dump() == before) return;
  config["transformers.js_config"] = std::move(settings);
  const std::string text = config.dump(2) + "\n";
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto inner = fs::weakly_canonical(path), outer = fs::canonical(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

fs::path checked_output(const QuantizeOptions& options) {
  if (options.output.extension() == ".onnx")
    throw usage_error(fmt::format("'{}' is a folder, so --output is one too", options.model.string()),
                      "give the name of a folder, or the model's file itself");
  if (is_inside(options.output, options.model))
    throw usage_error(fmt::format("output folder '{}' would lie inside the model's folder", options.output.string()),
                      "choose another --output");
  return options.output;
}

}  // namespace

ModelFolder read_model_folder(const fs::path& root) {
  ModelFolder folder{.root = root, .model = {}, .others = files_of(root), .variants = {}};
  auto& files = folder.others;
  folder.model = fs::exists(root / kGenaiConfig) ? model_of_genai(root) : only_model(root, files);
  const auto found = std::find(files.begin(), files.end(), folder.model);
  if (found == files.end())
    throw bad_input(
        fmt::format("folder '{}' has no '{}', which its configuration names", root.string(), folder.model.string()));
  files.erase(found);
  std::copy_if(files.begin(), files.end(), std::back_inserter(folder.variants),
               [&](const auto& file) { return is_variant(file, folder.model); });
  // Their data files: `NAME.onnx_data` of transformers.js, `NAME.onnx.data` of onnxruntime-genai.
  std::erase_if(files, [&](const auto& file) {
    return std::any_of(folder.variants.begin(), folder.variants.end(),
                       [&](const auto& variant) { return file.string().starts_with(variant.string()); });
  });
  return folder;
}

fs::path model_file(const fs::path& given) {
  std::error_code ignored;
  return fs::is_directory(given, ignored) ? given / read_model_folder(given).model : given;
}

FolderResult::FolderResult(const QuantizeOptions& options)
    : folder_(read_model_folder(options.model)), output_(checked_output(options)), options_(options) {
  options_.model = folder_.root / folder_.model;
  options_.output = output_.path() / folder_.model;
  fs::create_directories(options_.output.parent_path());
  const auto model = onnx::read_model(options_.model);
  const auto data = data_files(model);
  std::erase_if(folder_.others,
                [&](const auto& file) { return data.contains(fs::weakly_canonical(folder_.root / file)); });
  // The folder is put in place as a whole, and transformers.js expects this name.
  options_.external_data_suffix = folder_.model.parent_path() == "onnx" ? "_data" : ".data";
  if (!data.empty() && !options_.external_data_threshold) options_.external_data_threshold = 1024;
}

void FolderResult::finish(QuantizeResult& result) {
  for (const auto& file : folder_.others) {
    if (options_.stop.stop_requested()) throw interrupted();
    output_.copy(folder_.root / file, file);
    if (file.extension() == ".onnx") result.notes.push_back(fmt::format("'{}' was copied as it is", file.string()));
  }
  for (const auto& variant : folder_.variants)
    result.notes.push_back(fmt::format("'{}', another precision of the model, was left out", variant.string()));
  const bool has_data = fs::exists(options_.output.string() + options_.external_data_suffix);
  if (folder_.model.parent_path() == "onnx" && fs::exists(output_.path() / "config.json"))
    correct_transformers_config(output_.path() / "config.json", folder_.model.filename().string(), has_data);
  output_.commit();
}

}  // namespace detent::run
