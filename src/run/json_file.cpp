#include "run/json_file.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/small_file.h"

namespace detent::run {

nlohmann::ordered_json read_json(const std::filesystem::path& path) {
  auto json = nlohmann::ordered_json::parse(read_small_file(path, "configuration"), nullptr, false);
  if (json.is_discarded() || !json.is_object())
    throw bad_input(fmt::format("'{}' is not a JSON object", path.string()));
  return json;
}

}  // namespace detent::run
