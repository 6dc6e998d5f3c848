#include "onnx/own_data.h"

#include <fmt/format.h>

#include <protozero/pbf_reader.hpp>

#include "base/bytes.h"
#include "base/error.h"

namespace detent::onnx {
namespace fs = std::filesystem;
namespace {

using protozero::pbf_reader;

constexpr std::string_view kEnd = ".data";
constexpr std::size_t kDigits = 16;

// Calls fn with the reader of each message in field `number`.
template <class Fn>
void each(pbf_reader reader, protozero::pbf_tag_type number, Fn fn) {
  while (reader.next()) {
    if (reader.tag() == number && reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
      fn(reader.get_message());
    } else {
      reader.skip();
    }
  }
}

std::string location_of(pbf_reader entry) {
  std::string key, value;
  while (entry.next()) {
    const bool text = entry.wire_type() == protozero::pbf_wire_type::length_delimited;
    if (text && entry.tag() == 1) {
      key = entry.get_string();
    } else if (text && entry.tag() == 2) {
      value = entry.get_string();
    } else {
      entry.skip();
    }
  }
  return key == "location" ? value : std::string();
}

}  // namespace

std::string own_data_name(const fs::path& model, const Fingerprint& contents) {
  return fmt::format("{}.{}{}", model.filename().string(), contents.text().substr(0, kDigits), kEnd);
}

bool is_own_data_name(const fs::path& model, std::string_view name) {
  const std::string start = model.filename().string() + ".";
  if (name.size() != start.size() + kDigits + kEnd.size() || !name.starts_with(start) || !name.ends_with(kEnd))
    return false;
  return name.substr(start.size(), kDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::set<fs::path> own_data_files(const fs::path& path) {
  std::set<fs::path> files;
  try {
    const auto file = MappedFile::open(path, "model");
    const auto bytes = as_text(file->bytes());
    // ModelProto.graph 7, GraphProto.initializer 5, TensorProto.external_data 13
    each(pbf_reader(bytes.data(), bytes.size()), 7, [&](pbf_reader graph) {
      each(graph, 5, [&](pbf_reader tensor) {
        each(tensor, 13, [&](pbf_reader entry) {
          const std::string name = location_of(entry);
          if (is_own_data_name(path, name)) files.insert(path.parent_path() / name);
        });
      });
    });
  } catch (const Error&) {
    return {};
  } catch (const protozero::exception&) {
    return {};
  }
  return files;
}

}  // namespace detent::onnx
