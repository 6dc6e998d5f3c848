#include "fuzz/fuzz.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <fstream>
#include <numeric>

namespace detent::fuzz {
namespace fs = std::filesystem;

MemoryFile::MemoryFile(Bytes contents)
    : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_.get())) {
  write_all(fd_.get(), contents, path_);
}

const fs::path& folder() {
  static const TempDir folder;
  return folder.path();
}

fs::path put(const fs::path& name, Bytes contents) {
  const fs::path path = folder() / name;
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << as_text(contents);
  require(static_cast<bool>(out.flush()), "a working file can be written");
  return path;
}

fs::path fresh_folder(const std::string& name) {
  const fs::path path = folder() / name;
  fs::remove_all(path);
  fs::create_directories(path);
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

const fs::path& external_folder() {
  static const fs::path inside = [] {
    std::vector<std::byte> bytes(256);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
    put("outside/secret.bin", bytes);
    put("external/data.bin", bytes);
    put("external/sub/data.bin", bytes);
    put("external/model.onnx", {});
    const fs::path path = folder() / "external";
    fs::create_symlink("../outside/secret.bin", path / "link.bin");
    fs::create_directory_symlink("../outside", path / "up");
    fs::create_hard_link(folder() / "outside/secret.bin", path / "hard.bin");
    require(::mkfifo((path / "pipe").c_str(), 0600) == 0, "a FIFO can be made");
    return path;
  }();
  return inside;
}

}  // namespace detent::fuzz
