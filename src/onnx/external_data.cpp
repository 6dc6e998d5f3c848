#include "onnx/external_data.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "onnx/wire.h"

namespace detent::onnx {
namespace {

std::uint64_t parse_number(const std::string& key, const std::string& text, const std::string& where) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) {
    throw bad_input(fmt::format("{}: external data {} '{}' is not a whole number", where, key, printable(text)));
  }
  return value;
}

}  // namespace

ExternalRef parse_external(const std::vector<std::pair<std::string, std::string>>& entries, const std::string& where) {
  ExternalRef ref;
  for (const auto& [key, value] : entries) {
    if (key == "location") {
      ref.location = value;
    } else if (key == "offset") {
      ref.offset = parse_number(key, value, where);
    } else if (key == "length") {
      ref.length = parse_number(key, value, where);
    } else if (key != "checksum" && key != "basepath") {
      throw bad_input(fmt::format("{}: unknown external data key '{}'", where, printable(key)));
    }
  }
  return ref;
}

std::shared_ptr<const MappedFile> ExternalFiles::open(const std::string& location, const std::string& where) {
  const auto known = files_.find(location);
  if (known != files_.end()) return known->second;
  auto file = boundary_.open(location, where + ": external data file");
  files_.emplace(location, file);
  return file;
}

}  // namespace detent::onnx
