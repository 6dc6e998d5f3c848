#include "run/files/transformers_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "onnx/model.h"
#include "run/files/json_file.h"

namespace detent::run {
namespace {

using Json = nlohmann::ordered_json;

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

bool has_half_cache(const std::filesystem::path& path) {
  const auto model = onnx::read_model(path);
  return std::any_of(model.graph.inputs.begin(), model.graph.inputs.end(), [](const auto& input) {
    return input.name.starts_with("past_key_values") && input.type == onnx::DataType::float16;
  });
}

}  // namespace detent::run
