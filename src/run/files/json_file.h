// Small JSON files of other programs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace detent::run {

/// The object in a file, its members in their order. Throws bad_input when there is none.
nlohmann::ordered_json read_json(const std::filesystem::path& path);

}  // namespace detent::run
