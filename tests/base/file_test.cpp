#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "detent/error.h"

namespace detent {
namespace {
namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::size_t entries(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

mode_t mode_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

// The kind of the Error that `action` throws; nullopt when it throws none.
template <class Action>
std::optional<ErrorKind> thrown_kind(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

// Sets an environment variable for the length of a scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;
  ~ScopedEnvironment() {
    if (old_) {
      ::setenv(name_, old_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Lets files grow no further than `bytes`, as a full disk would.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ScopedFileLimit(const ScopedFileLimit&) = delete;
  ScopedFileLimit& operator=(const ScopedFileLimit&) = delete;
  ~ScopedFileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(UniqueFd, ClosesOnceAndMoves) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    UniqueFd first(raw);
    UniqueFd second(std::move(first));
    EXPECT_EQ(second.get(), raw);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(UniqueFd, AssignmentClosesTheOldOne) {
  UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd second(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int old = first.get();
  const int kept = second.get();
  first = std::move(second);
  EXPECT_FALSE(is_open(old));
  EXPECT_EQ(first.get(), kept);
  EXPECT_TRUE(is_open(kept));
}

TEST(UniqueFd, ReleaseGivesUpOwnership) {
  UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd taken(fd.release());
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(is_open(taken.get()));
}

TEST(MappedFile, ShowsTheWholeFile) {
  const TempDir dir;
  const fs::path path = dir.path() / "data";
  write_text(path, "hello");
  const auto file = MappedFile::open(path, "model");
  EXPECT_EQ(as_text(file->bytes()), "hello");
  EXPECT_EQ(file->path(), path);
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const TempDir dir;
  write_text(dir.path() / "empty", "");
  EXPECT_TRUE(MappedFile::open(dir.path() / "empty", "model")->bytes().empty());
}

TEST(MappedFile, PointersOfGitLfsAreNoFiles) {
  const TempDir dir;
  write_text(dir.path() / "model", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  try {
    MappedFile::open(dir.path() / "model", "model");
    FAIL() << "it was opened";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::bad_input);
    EXPECT_NE(std::string(e.what()).find("is a pointer of Git LFS"), std::string::npos) << e.what();
    EXPECT_EQ(e.hint(), "fetch it with 'git lfs pull'");
  }
}

TEST(MappedFile, KnowsItsParts) {
  const TempDir dir;
  write_text(dir.path() / "data", "0123456789");
  const auto file = MappedFile::open(dir.path() / "data", "model");
  const auto part = file->bytes().subspan(3, 4);
  EXPECT_TRUE(file->contains(file->bytes()));
  EXPECT_TRUE(file->contains(part));
  EXPECT_EQ(file->offset_of(part), 3u);
  const std::string other = "elsewhere";
  EXPECT_FALSE(file->contains(as_byte_span(other)));
}

TEST(MappedFile, ReleasedPagesAreReadAgain) {
  const TempDir dir;
  const std::string text(1 << 20, 'x');
  write_text(dir.path() / "data", text);
  const auto file = MappedFile::open(dir.path() / "data", "model");
  ASSERT_EQ(as_text(file->bytes()), text);
  file->release(file->bytes().subspan(100, 500'000));
  file->release(file->bytes().subspan(0, 10));
  file->release({});
  EXPECT_EQ(as_text(file->bytes()), text);
}

TEST(MappedFile, OutlivesTheFileName) {
  const TempDir dir;
  write_text(dir.path() / "data", "still here");
  const auto file = MappedFile::open(dir.path() / "data", "model");
  fs::remove(dir.path() / "data");
  EXPECT_EQ(as_text(file->bytes()), "still here");
}

TEST(MappedFile, RefusesWhatIsNotARegularFile) {
  const TempDir dir;
  const fs::path fifo = dir.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const fs::path& path : {dir.path() / "absent", dir.path(), fifo, fs::path("/dev/null")}) {
    try {
      MappedFile::open(path, "model");
      ADD_FAILURE() << path << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::bad_input) << path;
      EXPECT_NE(std::string(error.what()).find("model"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
}

TEST(AtomicFile, AppearsWholeOnCommit) {
  const TempDir dir;
  const fs::path target = dir.path() / "out.onnx";
  AtomicFile file(target);
  file.write(as_byte_span("one "));
  file.write(as_byte_span("two"));
  EXPECT_EQ(file.size(), 7u);
  EXPECT_FALSE(fs::exists(target));
  file.commit();
  EXPECT_EQ(read_text(target), "one two");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFile, KeepsTheOrderOfSmallAndLargePieces) {
  const TempDir dir;
  const fs::path target = dir.path() / "out";
  std::string expected;
  AtomicFile file(target);
  for (const std::size_t size : {1u, 262143u, 262144u, 262145u, 7u, 1'000'000u, 0u, 3u}) {
    const std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    file.write(as_byte_span(piece));
    expected += piece;
  }
  EXPECT_EQ(file.size(), expected.size());
  file.commit();
  EXPECT_TRUE(read_text(target) == expected);
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const TempDir dir;
  const fs::path target = dir.path() / "out";
  write_text(target, "old");
  {
    AtomicFile file(target);
    file.write(as_byte_span(std::string(1 << 20, 'x')));
  }
  EXPECT_EQ(read_text(target), "old");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFile, ReplacesAnOldFile) {
  const TempDir dir;
  const fs::path target = dir.path() / "out";
  write_text(target, "something older and longer");
  AtomicFile file(target);
  file.write(as_byte_span("new"));
  file.commit();
  EXPECT_EQ(read_text(target), "new");
}

TEST(AtomicFile, ReplacesOnlyRegularFiles) {
  const TempDir dir;
  const fs::path target = dir.path() / "out";
  const auto refused = [&](const std::string& says) {
    try {
      AtomicFile file(target);
      ADD_FAILURE() << "accepted: " << says;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
    EXPECT_EQ(entries(dir.path()), 1u);
    fs::remove(target);
  };
  fs::create_directory(target);
  refused("is a directory");
  ASSERT_EQ(::mkfifo(target.c_str(), 0600), 0);
  refused("is not a regular file");
  fs::create_symlink("elsewhere", target);
  refused("is a symbolic link");
  AtomicFile file(target);
  fs::create_symlink("elsewhere", target);  // made meanwhile
  EXPECT_THROW(file.commit(), Error);
  EXPECT_TRUE(fs::is_symlink(target));
}

TEST(SmallFile, IsRegularAndSmall) {
  const TempDir dir;
  const fs::path path = dir.path() / "settings";
  write_text(path, "a: 1\n");
  EXPECT_EQ(read_small_file(path, "settings"), "a: 1\n");
  fs::resize_file(path, kSmallFile + 1);
  EXPECT_THROW(read_small_file(path, "settings"), Error);
  fs::remove(path);
  EXPECT_THROW(read_small_file(path, "settings"), Error);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(read_small_file(path, "settings"), Error) << "without waiting for a writer";
  EXPECT_THROW(read_small_file(dir.path(), "settings"), Error);
}

TEST(AtomicFile, AnOpenMappingOfTheOldFileStaysIntact) {
  const TempDir dir;
  const fs::path target = dir.path() / "model";
  write_text(target, "old bytes");
  const auto old = MappedFile::open(target, "model");
  AtomicFile file(target);
  file.write(as_byte_span("new bytes"));
  file.commit();
  EXPECT_EQ(as_text(old->bytes()), "old bytes");
}

TEST(AtomicFile, MovesItsDutyToCleanUp) {
  const TempDir dir;
  {
    AtomicFile first(dir.path() / "out");
    first.write(as_byte_span("kept"));
    AtomicFile second(std::move(first));
    second.commit();
  }
  EXPECT_EQ(read_text(dir.path() / "out"), "kept");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFile, FollowsTheUmask) {
  const TempDir dir;
  const mode_t old = ::umask(027);
  AtomicFile file(dir.path() / "out");
  file.commit();
  ::umask(old);
  EXPECT_EQ(mode_of(dir.path() / "out"), mode_t{0640});
}

TEST(AtomicFile, AMissingDirectoryIsAUsageError) {
  const TempDir dir;
  EXPECT_EQ(thrown_kind([&] { AtomicFile file(dir.path() / "absent" / "out"); }), ErrorKind::usage);
}

TEST(AtomicFile, ADirectoryIsNotReplaced) {
  const TempDir dir;
  fs::create_directory(dir.path() / "taken");
  EXPECT_EQ(thrown_kind([&] {
              AtomicFile file(dir.path() / "taken");
              file.commit();
            }),
            ErrorKind::usage);
  EXPECT_TRUE(fs::is_directory(dir.path() / "taken"));
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(AtomicFile, AFullDiskIsAResourceErrorAndLeavesTheOldFile) {
  const TempDir dir;
  const fs::path target = dir.path() / "out";
  write_text(target, "old");
  const auto kind = [&] {
    const ScopedFileLimit limit(1 << 20);
    return thrown_kind([&] {
      AtomicFile file(target);
      file.write(as_byte_span(std::string(2 << 20, 'x')));
      file.commit();
    });
  }();
  EXPECT_EQ(kind, ErrorKind::resource);
  EXPECT_EQ(read_text(target), "old");
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(TempDir, IsPrivateAndGoesWithAllItHolds) {
  fs::path path;
  {
    const TempDir dir;
    path = dir.path();
    EXPECT_TRUE(path.is_absolute());
    EXPECT_EQ(mode_of(path), mode_t{0700});
    fs::create_directories(path / "a" / "b");
    write_text(path / "a" / "b" / "file", "text");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(TempDir, TwoAreDifferent) {
  const TempDir first;
  const TempDir second;
  EXPECT_NE(first.path(), second.path());
}

TEST(TempDir, GoesWhereItIsTold) {
  const TempDir parent;
  const TempDir named(parent.path());
  EXPECT_EQ(named.path().parent_path(), parent.path());
  const ScopedEnvironment environment("TMPDIR", parent.path().string());
  const TempDir from_environment;
  EXPECT_EQ(from_environment.path().parent_path(), parent.path());
}

TEST(TempDir, AMissingParentIsAUsageError) {
  EXPECT_EQ(thrown_kind([] { TempDir dir("/absent/folder"); }), ErrorKind::usage);
}

TEST(WriteAll, ADescriptorThatCannotBeWrittenIsBadInput) {
  const UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(thrown_kind([&] { write_all(fd.get(), as_byte_span("x"), "/dev/null"); }), ErrorKind::bad_input);
}

TEST(WriteAll, AFullDeviceIsAResourceError) {
  const UniqueFd fd(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(thrown_kind([&] { write_all(fd.get(), as_byte_span("x"), "/dev/full"); }), ErrorKind::resource);
}

TEST(AtomicFile, KeepsTheModeOfWhatItReplaces) {
  const TempDir dir;
  const auto path = dir.path() / "f";
  const auto mode_of = [&] { return fs::status(path).permissions(); };
  AtomicFile(path).commit();
  EXPECT_NE(mode_of() & fs::perms::owner_write, fs::perms::none);
  for (const auto mode : {fs::perms(0600), fs::perms(0644)}) {
    fs::permissions(path, mode);
    AtomicFile(path).commit();
    EXPECT_EQ(mode_of(), mode);
  }
}

}  // namespace
}  // namespace detent
