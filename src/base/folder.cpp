#include "base/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"

namespace detent {

namespace fs = std::filesystem;

namespace {

// A folder that a run of detent fills is known by its sticky bit, which it has from its first moment until it has its
// name: a file in it could be lost, or be gone before the folder is renamed, when the run dies.
#ifdef _WIN32
constexpr unsigned kMark = 0;
#else
constexpr unsigned kMark = S_ISVTX;
#endif

void check_target(const fs::path& target) {
  std::error_code ignored;
  const auto kind = fs::symlink_status(target, ignored).type();
  if (kind == fs::file_type::not_found || kind == fs::file_type::none) return;  // making it tells more
  if (kind != fs::file_type::directory)
    throw usage_error(fmt::format("output '{}' exists and is not a folder", target.string()),
                      "choose another --output");
  if (!fs::is_empty(target, ignored))
    throw usage_error(fmt::format("output folder '{}' exists and is not empty", target.string()),
                      "choose another --output, or remove it");
}

void sync(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0)
    throw failed_call(errno, fmt::format("cannot write '{}'", path.string()), ErrorKind::resource);
}

}  // namespace

AtomicFolder::AtomicFolder(const fs::path& target)
    : target_(target.has_filename() ? target : target.parent_path()),
      staging_(target_.parent_path() / fmt::format(".{}.partial", target_.filename().string())) {
  check_target(target_);
  const bool made = reserve_descriptors() && ::mkdir(staging_.c_str(), 0777 | kMark) == 0;
  if (!made && errno != EEXIST)
    throw failed_call(errno, fmt::format("cannot create folder '{}'", target_.string()), ErrorKind::usage,
                      "choose an --output in a folder that exists and can be written");
  try {
    take_over();
  } catch (...) {
    if (made) ::rmdir(staging_.c_str());
    throw;
  }
}

// The folder that it is filled in, which must be this user's and nobody else's at the moment.
void AtomicFolder::take_over() {
  lock_ = UniqueFd(::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  const bool known = lock_.valid() && ::fstat(lock_.get(), &info) == 0;
  if (!known && is_machine_fault(errno))
    throw failed_call(errno, fmt::format("cannot open '{}'", staging_.string()), ErrorKind::usage);
  if (!known || info.st_uid != ::geteuid())
    throw usage_error(fmt::format("'{}' is in the way", staging_.string()), "remove it, or choose another --output");
  const bool locked = ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno == ENOTSUP) throw unavailable("an output that is a folder");
  if (!locked)
    throw usage_error(fmt::format("another run is writing '{}'", target_.string()), "choose another --output");
  const auto entries = paths::entries_of(staging_);
  if (!entries.empty() && (info.st_mode & kMark) != kMark)
    throw usage_error(fmt::format("'{}' is in the way, and holds what no run of detent left there", staging_.string()),
                      "remove it, or choose another --output");
  leftover_ = Leftover(staging_);
  for (const auto& entry : entries) paths::remove(entry);
  (void)::fchmod(lock_.get(), (info.st_mode & 0777) | kMark);
}

AtomicFolder::~AtomicFolder() {
  if (!staging_.empty()) remove_tree(staging_.c_str());
}

void AtomicFolder::copy(const MappedFile& file, const fs::path& name) const {
  const fs::path to = staging_ / name;
  paths::make_folder(to.parent_path());
  struct stat info {};
  const UniqueFd fd(::fstat(file.descriptor(), &info) == 0
                        ? ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, info.st_mode & 0777)
                        : -1);
  off_t done = 0;
  ssize_t count = fd.valid() ? 1 : -1;
  while (count > 0 && done < info.st_size) {
    count = ::sendfile(fd.get(), file.descriptor(), &done, static_cast<std::size_t>(info.st_size - done));
    if (count < 0 && errno == EINTR) count = 1;
  }
  if (count < 0)
    throw failed_call(errno, fmt::format("cannot copy '{}' to '{}'", file.path().string(), to.string()),
                      ErrorKind::bad_input);
}

void AtomicFolder::commit() {
  // All at once: a disk takes long for 20,000 small files, each by itself. What failed since the folder was opened is
  // told here too.
  if (::syncfs(lock_.get()) != 0)
    throw failed_call(errno, fmt::format("cannot write '{}'", staging_.string()), ErrorKind::resource);
  failpoint("folder.commit");
  if (::rename(staging_.c_str(), target_.c_str()) != 0)
    throw failed_call(errno, fmt::format("cannot create folder '{}'", target_.string()), ErrorKind::usage,
                      "choose another --output");
  staging_.clear();
  leftover_.release();
  struct stat info {};
  if (::fstat(lock_.get(), &info) == 0) (void)::fchmod(lock_.get(), info.st_mode & 0777);
  sync(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

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
