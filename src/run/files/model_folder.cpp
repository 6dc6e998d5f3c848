#include "run/files/model_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/text.h"
#include "onnx/model.h"

namespace detent::run {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kGenaiConfig = "genai_config.json";
constexpr auto kTransformersConfig = "config.json";
// What transformers.js appends to a model's name for each of its dtypes, and optimum for some (src/utils/dtypes.js).
const std::set<std::string> kVariants{"_fp16", "_int8", "_uint8", "_q4", "_q4f16", "_q8", "_bnb4", "_quantized"};

struct Listing {
  std::vector<fs::path> files;     // regular ones, or links to such
  std::vector<fs::path> no_files;  // links to folders or to nothing, pipes, sockets, devices
};

// Relative to the root, in order. Hidden ones are a download tool's or an editor's.
Listing list(const fs::path& root) {
  Listing found;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(root, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (entry->path().filename().string().starts_with(".")) {
      entry.disable_recursion_pending();
    } else if (paths::is_file(entry->path())) {
      found.files.push_back(entry->path().lexically_relative(root));
    } else if (std::error_code unknown; entry->is_symlink(unknown) || !paths::is_folder(entry->path())) {
      found.no_files.push_back(entry->path().lexically_relative(root));
    }
  }
  if (failed)
    throw failed_call(errno_of(failed), fmt::format("cannot list folder '{}'", root.string()), ErrorKind::bad_input);
  std::sort(found.files.begin(), found.files.end());
  std::sort(found.no_files.begin(), found.no_files.end());
  return found;
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

// `NAME.onnx_data`, `NAME.onnx_data_1` and so on of transformers.js, `NAME.onnx.data` of onnxruntime-genai.
bool is_data_of(const fs::path& file, const fs::path& model) {
  const auto name = file.string(), base = model.string();
  if (!name.starts_with(base)) return false;
  const auto rest = name.substr(base.size());
  constexpr std::string_view kPart = "_data_";
  return rest == "_data" || rest == ".data" ||
         (rest.size() > kPart.size() && rest.starts_with(kPart) &&
          rest.find_first_not_of("0123456789", kPart.size()) == std::string::npos);
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

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto inner = paths::resolved(path), outer = paths::resolved(folder);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

fs::path checked_output(const QuantizeOptions& options) {
  if (options.output.extension() == ".onnx" && !options.family.empty())
    throw usage_error("--family writes several models, so --output is a folder", "give the name of a new one");
  if (options.output.extension() == ".onnx")
    throw usage_error(fmt::format("'{}' is a folder, so --output is one too", options.model.string()),
                      "give the name of a folder, or the model's file itself");
  if (!paths::is_folder(options.model)) return options.output;
  if (is_inside(options.output, options.model))
    throw usage_error(fmt::format("output folder '{}' would lie inside the model's folder", options.output.string()),
                      "choose another --output");
  return options.output;
}

// A file's folder is not looked at.
ModelFolder folder_of(const fs::path& model) {
  if (paths::is_folder(model)) return read_model_folder(model);
  return {.root = model.parent_path(), .model = model.filename(), .others = {}, .variants = {}, .no_files = {}};
}

// Whether the decoder in this file has a cache of float16.
bool has_half_cache(const std::filesystem::path& path) {
  const auto model = onnx::read_model(path);
  return std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(), [](const auto& input) {
    return input.name.starts_with("past_key_values") && input.type == onnx::DataType::float16;
  });
}

}  // namespace

ModelFolder read_model_folder(const fs::path& root) {
  auto listing = list(root);
  ModelFolder folder{.root = root,
                     .model = {},
                     .others = std::move(listing.files),
                     .variants = {},
                     .no_files = std::move(listing.no_files)};
  auto& files = folder.others;
  folder.model = paths::exists(root / kGenaiConfig) ? model_of_genai(root) : only_model(root, files);
  const auto found = std::find(files.begin(), files.end(), folder.model);
  if (found == files.end())
    throw bad_input(fmt::format("folder '{}' has no '{}', which its configuration names", root.string(),
                                printable(folder.model.string())));
  files.erase(found);
  std::copy_if(files.begin(), files.end(), std::back_inserter(folder.variants),
               [&](const auto& file) { return is_variant(file, folder.model); });
  std::erase_if(files, [&](const auto& file) {
    return std::any_of(folder.variants.begin(), folder.variants.end(),
                       [&](const auto& variant) { return file == variant || is_data_of(file, variant); });
  });
  return folder;
}

fs::path model_file(const fs::path& given) {
  return paths::is_folder(given) ? given / read_model_folder(given).model : given;
}

FolderResult::FolderResult(const QuantizeOptions& options, std::vector<Variant> variants)
    : folder_(folder_of(options.model)),
      variants_(std::move(variants)),
      is_genai_(paths::is_folder(options.model) && paths::exists(folder_.root / kGenaiConfig)),
      target_(checked_output(options)),
      output_(target_),
      boundary_(folder_.root, folder_.root / folder_.model),
      options_(options) {
  const bool of_folder = paths::is_folder(options.model);
  if (of_folder && folder_.model.parent_path() == "onnx" && options.kv_cache.type != KvCacheType::keep)
    throw usage_error("transformers.js has caches of float32 and float16 alone, and --kv-cache writes another",
                      "leave it out, or give the model's file");
  options_.model = folder_.root / folder_.model;
  for (std::size_t v = 0; v < variants_.size(); ++v) paths::make_folder((output_.path() / file_of(v)).parent_path());
  const auto model = onnx::read_model(options_.model);
  const auto data = data_files(model);
  if (!data.empty())
    std::erase_if(folder_.others,
                  [&](const auto& file) { return data.contains(paths::resolved(folder_.root / file)); });
  if (of_folder) check_config();
  // What must not be copied is better known before hours of work than after them.
  for (const auto& file : folder_.others) open(file);
  // The folder is put in place as a whole, and transformers.js expects this name.
  options_.external_data_suffix = folder_.model.parent_path() == "onnx" || !of_folder ? "_data" : ".data";
  if (of_folder && !data.empty() && !options_.external_data_threshold) options_.external_data_threshold = 1024;
}

// Before the work: the file is written again at its end.
void FolderResult::check_config() const {
  const auto path = folder_.root / kTransformersConfig;
  if (folder_.model.parent_path() != "onnx" || !paths::exists(path)) return;
  read_json(path);
  auto named = folder_.others;
  named.push_back(folder_.model);
  for (const auto& file : named) {
    if (file.extension() == ".onnx" && !json_of_name(file.filename().string()).is_string())
      throw bad_input(fmt::format("'{}' cannot name '{}', which is not UTF-8", path.string(), file.string()),
                      "rename it");
  }
}

fs::path FolderResult::file_of(std::size_t variant) const {
  const auto& [name, suffix] = variants_[variant];
  if (in_own_folders()) return name / folder_.model;
  const auto& model = folder_.model;
  return model.parent_path() / (model.stem().string() + suffix + model.extension().string());
}

QuantizeOptions FolderResult::options(std::size_t variant) const {
  auto made = options_;
  made.family.clear();
  made.output = output_.path() / file_of(variant);
  return made;
}

void FolderResult::copy_others(const fs::path& to) const {
  for (const auto& file : folder_.others) {
    if (options_.stop.stop_requested()) throw interrupted();
    output_.copy(*open(file), to / file);
  }
}

void FolderResult::correct_config() const {
  const auto path = output_.path() / kTransformersConfig;
  if (folder_.model.parent_path() != "onnx" || !paths::exists(path)) return;
  std::vector<WrittenModel> models;
  for (std::size_t v = 0; v < variants_.size(); ++v) {
    const auto model = output_.path() / file_of(v);
    models.push_back({.file = model.filename().string(),
                      .dtype = variants_[v].name.empty() ? "fp32" : variants_[v].name,
                      .has_data = paths::exists(model.string() + options_.external_data_suffix),
                      .half_cache = has_half_cache(model)});
  }
  std::vector<std::string> others;
  for (const auto& file : folder_.others) {
    if (file.extension() == ".onnx") others.push_back(file.filename().string());
  }
  correct_transformers_config(path, models, others);
}

void FolderResult::finish(std::vector<std::string>& notes) {
  std::set<fs::path> made;
  for (std::size_t v = 0; v < variants_.size(); ++v) {
    if (in_own_folders()) copy_others(variants_[v].name);
    made.insert(file_of(v));
  }
  if (!in_own_folders()) copy_others("");
  for (const auto& file : folder_.others) {
    if (file.extension() == ".onnx") notes.push_back(fmt::format("'{}' was copied as it is", file.string()));
  }
  for (const auto& other : folder_.no_files)
    notes.push_back(
        fmt::format("'{}' was left out: it is neither a file nor a link to one", printable(other.string())));
  for (const auto& variant : folder_.variants) {
    if (!made.contains(variant))
      notes.push_back(fmt::format("'{}', another precision of the model, was left out", variant.string()));
  }
  correct_config();
  output_.commit();
}

nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  auto json = parse_json<nlohmann::ordered_json>(read_small_file(path, "configuration"));
  if (!json || !json->is_object())
    throw bad_input(fmt::format("'{}' is not a JSON object of at most {} levels and {} values", path.string(),
                                kMostJsonLevels, kMostJsonValues));
  return std::move(*json);
}

namespace {

constexpr auto kData = "use_external_data_format";
constexpr auto kCache = "kv_cache_dtype";
constexpr auto kHalf = "float16", kFloat = "float32";

void tell_data(Json& settings, const std::vector<WrittenModel>& models, const std::vector<std::string>& others) {
  Json& told = settings[kData];
  if (!told.is_object() && models.size() == 1) {
    const bool has_data = models.front().has_data;
    if (has_data || !told.is_null()) told = has_data;
  } else {
    if (!told.is_object()) {
      const Json of_all = std::exchange(told, Json::object());
      const bool had_data = of_all.is_boolean() ? of_all.get<bool>() : of_all.is_number() && of_all != 0;
      for (const auto& other : others) {
        if (had_data) told[other] = of_all;
      }
    }
    for (const auto& model : models) {
      if (model.has_data || told.contains(model.file)) told[model.file] = model.has_data;
    }
    if (told.empty()) told = nullptr;
  }
  if (told.is_null()) settings.erase(kData);
}

void tell_caches(Json& settings, const std::vector<WrittenModel>& models) {
  const auto before = settings.value(kCache, Json());
  const auto as_told = [&](const WrittenModel& model) {
    const Json type = before.is_object() ? before.value(model.dtype, Json(kFloat)) : before;
    return (type.is_string() ? type.get<std::string>() : kFloat) == (model.half_cache ? kHalf : kFloat);
  };
  if (std::all_of(models.begin(), models.end(), as_told)) return;
  Json told = before.is_object() ? before : Json::object();
  for (const auto& model : models) told[model.dtype] = model.half_cache ? kHalf : kFloat;
  settings[kCache] = std::move(told);
}

}  // namespace

void correct_transformers_config(const std::filesystem::path& path, const std::vector<WrittenModel>& models,
                                 const std::vector<std::string>& others) {
  auto config = read_json(path);
  Json settings = config.value("transformers.js_config", Json::object());
  if (!settings.is_object()) return;
  const auto before = json_text(settings);
  tell_data(settings, models, others);
  tell_caches(settings, models);
  if (json_text(settings) == before) return;
  config["transformers.js_config"] = std::move(settings);
  const std::string text = json_text(config, 2) + "\n";
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace detent::run
