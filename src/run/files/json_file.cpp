#include "run/files/json_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/small_file.h"

namespace detent::run {

nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  auto json = parse_json<nlohmann::ordered_json>(read_small_file(path, "configuration"));
  if (!json || !json->is_object())
    throw bad_input(fmt::format("'{}' is not a JSON object of at most {} levels and {} values", path.string(),
                                kMostJsonLevels, kMostJsonValues));
  return std::move(*json);
}

}  // namespace detent::run
