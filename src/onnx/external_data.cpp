#include "onnx/external_data.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "onnx/wire.h"

namespace detent::onnx {
namespace fs = std::filesystem;
namespace {

std::uint64_t parse_number(const std::string& key, const std::string& text, const std::string& where) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) {
    throw bad_input(fmt::format("{}: external data {} '{}' is not a whole number", where, key, printable(text)));
  }
  return value;
}

bool is_inside(const fs::path& path, const fs::path& directory) {
  const auto [rest, unused] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return rest == directory.end();
}

// What was opened is the file that was judged, and it has no other name: a hard link has no target that could be
// judged, and lies inside the directory whatever else it is (as an archive may unpack it).
void check_opened(const MappedFile& file, const fs::path& judged, const std::string& where) {
  std::error_code failed;
  const fs::path opened = fs::read_symlink(fmt::format("/proc/self/fd/{}", file.descriptor()), failed);
  struct stat info {};
  if (failed || opened != judged || ::fstat(file.descriptor(), &info) != 0) {
    throw bad_input(
        fmt::format("{}: external data file '{}' was replaced while it was opened", where, printable(judged.string())),
        "run again when nothing else changes the model's directory");
  }
  if (info.st_nlink > 1) {
    throw bad_input(fmt::format("{}: external data file '{}' has {} hard links, so it may be a file from elsewhere",
                                where, printable(judged.string()), info.st_nlink),
                    "replace it by a copy of its own");
  }
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
  const auto known = std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f.first == location; });
  if (known != files_.end()) return known->second;

  const fs::path relative(location);
  const bool climbs = std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  if (location.empty() || relative.is_absolute() || climbs || location.find('\0') != std::string::npos) {
    throw bad_input(fmt::format("{}: external data location '{}' is not a path inside the model's directory", where,
                                printable(location)),
                    "keep the data file beside the model");
  }
  const fs::path directory = model_path_.has_parent_path() ? model_path_.parent_path() : fs::path(".");
  std::error_code status;
  const fs::path resolved = fs::canonical(directory / relative, status);
  if (status) {
    throw bad_input(fmt::format("{}: cannot open external data file '{}': {}", where,
                                printable((directory / relative).string()), status.message()),
                    "keep the data file beside the model");
  }
  const fs::path home = fs::canonical(directory, status);
  const fs::path model_home = status ? fs::path() : fs::canonical(model_path_, status).parent_path();
  if (status || (!is_inside(resolved, home) && !is_inside(resolved, model_home))) {
    throw bad_input(
        fmt::format("{}: external data location '{}' leads outside the model's directory", where, printable(location)),
        "keep the data file beside the model");
  }
  if (const auto kind = fs::status(resolved, status); !fs::is_regular_file(kind)) {
    throw bad_input(fmt::format("{}: external data file '{}' is {}", where, printable(resolved.string()),
                                fs::is_directory(kind) ? "a directory" : "not a regular file"));
  }
  auto file = MappedFile::open(resolved, "external data file");
  check_opened(*file, resolved, where);
  files_.emplace_back(location, file);
  return file;
}

}  // namespace detent::onnx
