// Runs every input of the corpora, and inputs that are made by changing them:
//
//     replay CORPORA                       a folder with one folder for each target
//     replay CORPORA COUNT [SEED] [TARGET] COUNT changed inputs for each target (fewer where they take long), or for
//     one replay TARGET FILE                   one input
//
// Corpora of targets that this build does not have are left out. What a target does not survive ends the program. Of
// files, the last line tells which that was; a changed input lies in the file `input` of the working directory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "fuzz/changes.h"
#include "fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;
using detent::fuzz::require;
using detent::fuzz::Target;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  require(in.is_open(), "an input can be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

void replay(const Target& target, const fs::path& folder) {
  const auto files = files_of(folder);
  for (const fs::path& file : files) {
    std::cerr << target.name << ' ' << file.filename().string() << std::endl;
    target.run(detent::as_byte_span(contents(file)));
  }
  std::cout << target.name << ": " << files.size() << " inputs\n";
}

// A file that has the input of the moment, also after a crash, without a call to the system for each.
class InputFile {
 public:
  InputFile() : fd_(::open("input", O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    require(fd_.valid() && ::ftruncate(fd_.get(), kSize) == 0, "the working directory can be written");
    void* const at = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    require(at != MAP_FAILED, "a file can be mapped");
    at_ = static_cast<char*>(at);
  }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile() { ::munmap(at_, kSize); }

  void set(const std::string& input) {
    require(input.size() + sizeof(std::uint64_t) <= kSize, "an input is not too long");
    const std::uint64_t size = input.size();
    std::copy_n(input.data(), input.size(), at_ + sizeof size);
    std::memcpy(at_, &size, sizeof size);
  }
  /// What an earlier process left in such a file; another file as it is.
  static std::string of(const std::string& file) {
    std::uint64_t size = 0;
    if (file.size() != kSize) return file;
    std::memcpy(&size, file.data(), sizeof size);
    return file.substr(sizeof size, size);
  }

 private:
  static constexpr std::size_t kSize = 1 << 16;
  detent::UniqueFd fd_;
  char* at_ = nullptr;
};

void change(const Target& target, const fs::path& folder, std::size_t count, std::uint64_t seed) {
  std::vector<std::string> corpus;
  for (const auto& file : files_of(folder)) corpus.push_back(contents(file));
  require(!corpus.empty(), "a corpus has inputs");
  detent::fuzz::Changes changes(target, corpus, seed);
  InputFile file;
  std::cerr << target.name << ", changed" << std::endl;
  const auto begin = std::chrono::steady_clock::now();
  count = std::max<std::size_t>(1, count / target.cost);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string input = changes.next();
    file.set(input);
    target.run(detent::as_byte_span(input));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::cout << target.name << ": " << count << " changed inputs, " << seconds.count() << " s" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words.size() > 4) {
    std::cerr << "usage: replay CORPORA [COUNT [SEED [TARGET]]], replay TARGET FILE\n";
    return 2;
  }
  if (words.size() > 1 && ::access("/dev/shm", W_OK) == 0)
    ::setenv("TMPDIR", "/dev/shm", 1);  // many small working files, some of them with fsync: most of the time on a disk
  const std::size_t count = words.size() > 1 ? std::strtoull(words[1].c_str(), nullptr, 10) : 0;
  const std::uint64_t seed = words.size() > 2 ? std::strtoull(words[2].c_str(), nullptr, 10) : 1;
  for (const auto& target : detent::fuzz::targets()) {
    const fs::path folder = fs::path(words[0]) / target.name;
    if (words[0] == target.name) {
      target.run(detent::as_byte_span(InputFile::of(contents(words.at(1)))));
    } else if (fs::is_directory(words[0]) && (words.size() < 4 || words[3] == target.name)) {
      require(fs::is_directory(folder), "there is a corpus for " + target.name);
      if (count == 0) replay(target, folder);
      if (count > 0) change(target, folder, count, seed);
    }
  }
  return 0;
}
