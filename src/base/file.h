// Owned handles of the file system: descriptors, read-only mappings, files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/leftovers.h"

namespace detent {

/// A file descriptor, closed on destruction. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd();

  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept;

 private:
  int fd_ = -1;
};

/// A regular file mapped read-only as a whole. Pages are read on first touch and can be given back with release().
/// The mapping has a fixed address for the object's life, so spans into it stay valid as long as the shared pointer
/// lives. The file stays open: descriptor() refers to what was mapped, whatever the path leads to by then.
class MappedFile {
 public:
  /// `role` names the file's part in messages, as in "model". Throws bad_input when the path is missing, is not a
  /// regular file or cannot be read, and resource when the process may open no more files.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path, const std::string& role);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  const std::filesystem::path& path() const noexcept { return path_; }
  int descriptor() const noexcept { return fd_.get(); }
  bool contains(std::span<const std::byte> part) const noexcept;
  std::uint64_t offset_of(std::span<const std::byte> part) const noexcept;
  /// Drops the resident pages that `part` touches; they are read again from the file when next needed.
  void release(std::span<const std::byte> part) const noexcept;

 private:
  MappedFile(std::filesystem::path path, UniqueFd fd, std::span<const std::byte> bytes)
      : path_(std::move(path)), fd_(std::move(fd)), bytes_(bytes) {}

  std::filesystem::path path_;
  UniqueFd fd_;
  std::span<const std::byte> bytes_;
};

/// Throws usage when something stands at `path` that a file must not take the place of: a folder, a device, a FIFO, a
/// socket, or a symbolic link (whose target would stay as it is).
void check_replaceable(const std::filesystem::path& path);

/// A file written under a temporary name in its target directory and renamed into place by commit(). Without commit()
/// the destructor removes it, so the target is either whole or untouched. Throws usage when the target cannot be
/// created or check_replaceable() refuses it, and resource when the disk is full.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> data);
  std::uint64_t size() const noexcept { return size_; }
  const std::filesystem::path& target() const noexcept { return target_; }
  /// Where the file is until commit(); whole after sync().
  const std::filesystem::path& temporary() const noexcept { return temporary_; }
  /// Another name in the same directory.
  void set_target(std::filesystem::path target) { target_ = std::move(target); }
  /// Brings what was written to the disk, so that commit() does not take long. Nothing may be written any more.
  void sync();
  /// sync(), rename over the target, fsync the directory.
  void commit();

 private:
  void flush();

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  Leftover leftover_;
  UniqueFd fd_;
  std::string buffer_;
  std::uint64_t size_ = 0;
  bool synced_ = false;
};

/// A private 0700 directory under `parent` (default: $TMPDIR or /tmp), removed with all it holds on destruction.
class TempDir {
 public:
  explicit TempDir(const std::filesystem::path& parent = {});
  /// Takes over a directory that is there.
  static TempDir adopt(std::filesystem::path path) { return TempDir(Adopted{}, std::move(path)); }
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})), leftover_(std::move(other.leftover_)) {}
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::filesystem::path& path() const noexcept { return path_; }
  /// Leaves the directory where it is.
  void keep() noexcept {
    path_.clear();
    leftover_.release();
  }
  /// It stays when the process ends without unwinding.
  void outlive_process() noexcept { leftover_.release(); }

 private:
  struct Adopted {};
  TempDir(Adopted, std::filesystem::path path) : path_(std::move(path)), leftover_(path_) {}

  std::filesystem::path path_;
  Leftover leftover_;
};

/// Where working files go when nobody says: $TMPDIR or /tmp; on Windows $TMP, $TEMP or the home.
std::filesystem::path default_work_dir();

/// Writes all of `data` at the descriptor's position. Throws resource (ENOSPC, EDQUOT, EFBIG) or bad_input naming
/// `path`.
void write_all(int fd, std::span<const std::byte> data, const std::filesystem::path& path);

/// To be called when all is written and others are to read it, or its folder is to be removed. On Windows it closes the
/// file: others there may refuse to read what is open for writing, as ONNX Runtime does, and a folder stays as long as
/// a file of it is open. Elsewhere it does nothing.
void release_to_others(UniqueFd& file) noexcept;

/// A TempDir whose name is `prefix` and six characters.
TempDir named_temp_dir(const std::filesystem::path& parent, std::string_view prefix);

inline constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;

/// The contents of a regular file of at most kSmallFile bytes. Does not wait for a writer, as reading a FIFO would.
/// `role` names the file's part in messages. Throws bad_input for anything else, and
/// resource where the machine is at fault.
std::string read_small_file(const std::filesystem::path& path, const std::string& role);

/// The same of an open file.
std::string read_small_file(int fd, const std::filesystem::path& path, const std::string& role);

/// A new file that only this user can read. Throws resource where it cannot be created, or is there.
UniqueFd create_working_file(const std::filesystem::path& path);

/// Writes all of `data` from `offset` on, beside what other threads write elsewhere. Throws resource naming `path`.
void write_at(int fd, std::span<const std::byte> data, std::uint64_t offset, const std::filesystem::path& path);

/// Keeps other runs from replacing files in a directory for as long as the descriptor lives. Invalid when another
/// process does not let go within ten seconds, or where directories cannot be locked.
UniqueFd lock_directory(const std::filesystem::path& directory);

}  // namespace detent
