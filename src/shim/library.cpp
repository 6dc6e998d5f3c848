#include "shim/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"

namespace detent::shim {
namespace fs = std::filesystem;

std::optional<Library> Library::open(const std::vector<std::string>& candidates) {
  for (const auto& name : candidates) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library(handle, name);
  }
  return std::nullopt;
}

void* Library::symbol(const char* symbol_name) const {
  void* address = ::dlsym(handle_, symbol_name);
  if (address == nullptr) throw device_error(fmt::format("'{}' has no symbol {}", name_, symbol_name));
  return address;
}

Library load_onnxruntime(const std::optional<fs::path>& explicit_path) {
  // ONNX Runtime's Python wheel reports usage by default; detent never phones home.
  ::setenv("ORT_DISABLE_TELEMETRY", "1", 1);
  const char* variable = std::getenv("DETENT_ONNXRUNTIME");
  std::vector<std::string> candidates;
  if (explicit_path) {
    candidates = {explicit_path->string()};
  } else if (variable != nullptr && *variable != '\0') {
    candidates = {variable};
  } else {
    std::error_code ignored;
    const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    candidates = {(here / "libonnxruntime.so").string(), (here.parent_path() / "lib" / "libonnxruntime.so").string(),
                  "libonnxruntime.so.1", "libonnxruntime.so"};
  }
  if (auto library = Library::open(candidates)) return *library;
  const char* reason = ::dlerror();
  throw device_error(
      fmt::format("cannot load ONNX Runtime: {}", reason == nullptr ? "not found" : reason),
      "install it (pip install onnxruntime) and set DETENT_ONNXRUNTIME to the path of its libonnxruntime.so");
}

}  // namespace detent::shim
