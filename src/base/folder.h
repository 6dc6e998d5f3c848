// A folder that appears whole or not at all.
#pragma once

#include <filesystem>

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

}  // namespace detent
