#include "config/node_formats.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/enum_names.h"

namespace detent::config {

std::string_view name_of(NodeFormat format) noexcept {
  switch (format) {
    case NodeFormat::fp32: return "fp32";
    case NodeFormat::int8: return "int8";
    case NodeFormat::a16w8: return "a16w8";
    case NodeFormat::dynamic: return "int8-dynamic";
    case NodeFormat::w8: return "w8";
    case NodeFormat::q8: return "q8";
    case NodeFormat::q4: return "q4";
    case NodeFormat::q2: return "q2";
  }
  return {};
}

NodeFormat node_format(std::string_view name, std::string_view option) {
  std::vector<std::string_view> all;
  for (const auto format : kNodeFormats) {
    if (name_of(format) == name) return format;
    all.push_back(name_of(format));
  }
  throw not_one_of(option, name, all);
}

NodeFormatEntry parse_node_format(const std::string& text) {
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw usage_error(fmt::format("--node-formats: '{}' is not a node with its format", text),
                      "give NODE=FORMAT, as in conv_1=int8 or '^.*mlp.*=q4'");
  return {text.substr(0, equals), node_format(std::string_view(text).substr(equals + 1), "--node-formats")};
}

}  // namespace detent::config
