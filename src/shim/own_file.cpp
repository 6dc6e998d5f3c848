#include "shim/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <string_view>
#include <system_error>

namespace detent::shim {
namespace fs = std::filesystem;

const char* const kProgram = "detent";
const char* const kRuntimeFile = "libonnxruntime.so";
const char* const kCpuPluginFile = "libdetent_cpu.so";
const char* const kCudaPluginFile = "libdetent_cuda.so";

std::vector<std::string> runtimes_of_system() { return {"libonnxruntime.so.1", "libonnxruntime.so"}; }

fs::path own_file() {
  std::error_code ignored;
  Dl_info info{};
  static const char anchor = 0;
  // Of an executable the name may be what it was called by; the kernel knows better.
  const bool known = ::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr;
  if (known && std::string_view(info.dli_fname).find(".so") != std::string_view::npos)
    return fs::weakly_canonical(info.dli_fname, ignored);
  std::array<char, PATH_MAX> self{};
  const ssize_t length = ::readlink("/proc/self/exe", self.data(), self.size());
  return length <= 0 ? fs::path() : fs::path(std::string(self.data(), static_cast<std::size_t>(length)));
}

}  // namespace detent::shim
