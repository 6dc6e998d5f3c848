// Runs every input of the corpora once: `replay CORPORA`, a folder with one folder for each target. Corpora of targets
// that this build does not have are left out. What a target does not survive ends the program; the last line tells
// which input that was.
#include <fstream>
#include <iostream>
#include <iterator>

#include "fuzz/fuzz.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::size_t replay(const detent::fuzz::Target& target, const fs::path& folder) {
  const auto files = files_of(folder);
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::cerr << target.name << ' ' << file.filename().string() << std::endl;
    target.run(detent::as_byte_span(bytes));
  }
  return files.size();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: replay CORPORA\n";
    return 2;
  }
  for (const auto& target : detent::fuzz::targets()) {
    const fs::path folder = fs::path(argv[1]) / target.name;
    detent::fuzz::require(fs::is_directory(folder), "there is a corpus for " + target.name);
    std::cout << target.name << ": " << replay(target, folder) << " inputs\n";
  }
  return 0;
}
