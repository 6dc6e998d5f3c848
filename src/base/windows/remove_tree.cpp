#include "base/remove_tree.h"

#include <cerrno>

#include "base/failure.h"

namespace detent {
namespace fs = std::filesystem;

bool reserve_descriptors() noexcept { return true; }

// std::filesystem does not follow links here either. It takes memory, other than on Linux.
bool remove_tree(const fs::path::value_type* path) noexcept {
  try {
    std::error_code failed;
    const fs::path identity = fs::path(path) / kIdentityFile;
    const bool is_file = fs::symlink_status(identity, failed).type() == fs::file_type::regular;
    if (is_file && fs::hard_link_count(identity, failed) == 1) fs::resize_file(identity, 0, failed);
    failed.clear();
    for (fs::directory_iterator entry(path, failed), end; !failed && entry != end; entry.increment(failed)) {
      if (entry->path().filename() != kIdentityFile) fs::remove_all(entry->path(), failed);
    }
    if (!failed || errno_of(failed) == ENOTDIR || errno_of(failed) == ENOENT) fs::remove_all(path, failed);
    errno = failed ? errno_of(failed) : 0;
    return !failed || errno == ENOENT;
  } catch (...) {
    errno = ENOMEM;
    return false;
  }
}

}  // namespace detent
