// Folders: one that appears as a whole, and one that nothing read from it may leave.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "base/file.h"

namespace detent {

/// A folder that is filled under another name beside its target, `.NAME.partial`, and renamed into place by commit().
/// Without commit() the destructor removes it; what a killed run left is removed by the next one for the same target.
/// The target may be an empty folder. Throws usage when it is anything else that exists, when its parent cannot be
/// written, and when another process fills it.
class AtomicFolder {
 public:
  explicit AtomicFolder(const std::filesystem::path& target);
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  /// Where to put files until commit(); the same for every run with this target.
  const std::filesystem::path& path() const noexcept { return staging_; }
  /// Copies what `file` has open, with its permissions. Throws resource when the disk is full.
  void copy(const MappedFile& file, const std::filesystem::path& name) const;
  void commit();

 private:
  void take_over();

  std::filesystem::path target_, staging_;
  Leftover leftover_;
  UniqueFd lock_;
};

// Files that come with a model under names which its author chose. Whatever they are called, they must lie with the
// model: a result that is passed on must not carry a file from elsewhere (SECURITY.md).

/// The rules: with every link resolved a file stays inside the directory, or inside the directory of the file that the
/// model's own path resolves to (model caches made of links); it is a regular file; what was opened is what was judged;
/// it has no other hard link, since a hard link has no target that could be judged.
class Boundary {
 public:
  Boundary(const std::filesystem::path& directory, const std::filesystem::path& model);

  /// `name` is relative to the directory; `role` begins messages, as in "initializer 'w': external data file". Throws
  /// bad_input where a rule is broken, and what MappedFile::open() throws.
  std::shared_ptr<const MappedFile> open(const std::filesystem::path& name, const std::string& role) const;

 private:
  std::filesystem::path directory_;
  std::error_code unknown_;                  // why the next two are not known
  std::filesystem::path home_, model_home_;  // with every link resolved
};

}  // namespace detent
