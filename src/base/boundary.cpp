#include "base/boundary.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/failure.h"
#include "base/paths.h"
#include "base/printable.h"

namespace detent {
namespace fs = std::filesystem;
namespace {

bool is_inside(const fs::path& path, const fs::path& directory) {
  const auto [rest, unused] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return rest == directory.end();
}

bool has_dot_dot(const fs::path& name) {
  return std::any_of(name.begin(), name.end(), [](const fs::path& part) { return part == ".."; });
}

// A disk that fails is no fault of the file.
void throw_machine_fault(const std::error_code& failed, const fs::path& path, const std::string& role) {
  if (failed && is_machine_fault(errno_of(failed)))
    throw failed_call(errno_of(failed), fmt::format("cannot look at {} '{}'", role, printable(path.string())),
                      ErrorKind::bad_input);
}

void check_opened(const MappedFile& file, const fs::path& judged, const std::string& role) {
  std::error_code failed;
  const fs::path opened = paths::of_open_file(file.descriptor(), failed);
  struct stat info {};
  if (!failed && ::fstat(file.descriptor(), &info) != 0) failed.assign(errno, std::generic_category());
  throw_machine_fault(failed, judged, role);
  if (failed || opened != judged) {
    throw bad_input(fmt::format("{} '{}' was replaced while it was opened", role, printable(judged.string())),
                    "run again when nothing else changes the model's directory");
  }
  if (info.st_nlink > 1) {
    throw bad_input(fmt::format("{} '{}' has {} hard links, so it may be a file from elsewhere", role,
                                printable(judged.string()), info.st_nlink),
                    "replace it by a copy of its own");
  }
}

}  // namespace

Boundary::Boundary(const fs::path& directory, const fs::path& model)
    : directory_(directory.empty() ? fs::path(".") : directory) {
  std::error_code failed;
  home_ = fs::canonical(directory_, failed);
  if (!failed) model_home_ = fs::canonical(model, failed).parent_path();
  unknown_ = failed;
}

std::shared_ptr<const MappedFile> Boundary::open(const fs::path& name, const std::string& role) const {
  const auto told = printable(name.string());
  if (name.empty() || name.is_absolute() || has_dot_dot(name) || name.native().find('\0') != std::string::npos)
    throw bad_input(fmt::format("{} '{}' is not a path inside the model's directory", role, told),
                    "keep the file beside the model");
  std::error_code status;
  const fs::path resolved = fs::canonical(directory_ / name, status);
  throw_machine_fault(status, directory_ / name, role);
  if (status)
    throw bad_input(
        fmt::format("{} '{}' cannot be opened: {}", role, printable((directory_ / name).string()), status.message()),
        "keep the file beside the model");
  throw_machine_fault(unknown_, directory_, role);
  if (unknown_ || (!is_inside(resolved, home_) && !is_inside(resolved, model_home_)))
    throw bad_input(fmt::format("{} '{}' leads outside the model's directory", role, told),
                    "keep the file itself beside the model, or remove the link");
  const auto kind = fs::status(resolved, status).type();
  throw_machine_fault(status, resolved, role);
  if (kind != fs::file_type::regular)
    throw bad_input(fmt::format("{} '{}' is {}", role, printable(resolved.string()),
                                kind == fs::file_type::directory ? "a directory" : "not a regular file"));
  auto file = MappedFile::open(resolved, role);
  check_opened(*file, resolved, role);
  return file;
}

}  // namespace detent
