#include "base/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace detent {

namespace paths {
namespace fs = std::filesystem;

namespace {

void check(const std::error_code& failed, const char* what, const fs::path& path) {
  if (failed)
    throw failed_call(errno_of(failed), fmt::format("cannot {} '{}'", what, path.string()), ErrorKind::bad_input);
}

fs::file_type kind_of(const fs::path& path) {
  std::error_code failed;
  const auto kind = fs::status(path, failed).type();
  if (failed && is_machine_fault(errno_of(failed))) check(failed, "look at", path);
  return kind;
}

// What a call finds, which takes the place for its error.
template <class Call>
auto known(const char* what, const fs::path& path, Call call) {
  std::error_code failed;
  auto found = call(failed);
  check(failed, what, path);
  return found;
}

}  // namespace

bool exists(const fs::path& path) {
  std::error_code failed;
  const auto kind = fs::status(path, failed).type();
  if (kind == fs::file_type::not_found) return false;
  check(failed, "look at", path);
  return true;
}

bool is_folder(const fs::path& path) { return kind_of(path) == fs::file_type::directory; }
bool is_file(const fs::path& path) { return kind_of(path) == fs::file_type::regular; }

std::uint64_t size_of(const fs::path& file) {
  return known("look at", file, [&](auto& failed) { return fs::file_size(file, failed); });
}

fs::file_time_type changed_at(const fs::path& file) {
  return known("look at", file, [&](auto& failed) { return fs::last_write_time(file, failed); });
}

fs::path absolute(const fs::path& path) {
  return known("find the current folder, for", path, [&](auto& failed) { return fs::absolute(path, failed); });
}

fs::path resolved(const fs::path& path) {
  return known("look at", path, [&](auto& failed) { return fs::weakly_canonical(paths::absolute(path), failed); });
}

fs::path target_of(const fs::path& link) {
  return known("read link", link, [&](auto& failed) { return fs::read_symlink(link, failed); });
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  check(failed, "create folder", folder);
}

void remove(const fs::path& path) {
  if (remove_tree(path.c_str())) return;
  check({errno == 0 ? EIO : errno, std::generic_category()}, "remove", path);
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed))
    entries.push_back(entry->path());
  check(failed, "list folder", folder);
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace paths

}  // namespace detent
