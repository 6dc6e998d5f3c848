#include "shim/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace detent::shim {
namespace fs = std::filesystem;
namespace {

/// What was asked for by argument or environment; empty when nothing was.
std::vector<std::string> chosen(const std::optional<fs::path>& explicit_path, const char* variable) {
  if (explicit_path) return {explicit_path->string()};
  const char* value = std::getenv(variable);
  if (value != nullptr && *value != '\0') return {value};
  return {};
}

/// The folder of the file that this code was loaded from: the executable, or a library inside another program.
fs::path own_folder() {
  std::error_code ignored;
  Dl_info info{};
  static const char anchor = 0;
  // Of an executable the name may be what it was called by; the kernel knows better.
  const bool known = ::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr;
  if (known && std::string_view(info.dli_fname).find(".so") != std::string_view::npos)
    return fs::weakly_canonical(info.dli_fname, ignored).parent_path();
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

/// Where a library of this name is when detent is installed or was built.
std::vector<std::string> installed(const char* name) {
  const fs::path here = own_folder();
  return {(here / name).string(), (here.parent_path() / "lib" / name).string()};
}

Library load_plugin(const std::optional<fs::path>& explicit_path, const char* variable, const char* name,
                    const char* what, const char* hint) {
  std::vector<std::string> candidates = chosen(explicit_path, variable);
  if (candidates.empty()) {
    // Of the usual places the first where the plugin is: why that one cannot be loaded is then the reason to report.
    candidates = installed(name);
    if (fs::exists(candidates.front())) candidates.resize(1);
  }
  if (auto library = Library::open(candidates)) return *library;
  const char* reason = ::dlerror();
  throw device_error(fmt::format("cannot load {}: {}", what, reason == nullptr ? "not found" : reason), hint);
}

}  // namespace

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
  std::vector<std::string> candidates = chosen(explicit_path, "DETENT_ONNXRUNTIME");
  if (candidates.empty()) {
    candidates = installed("libonnxruntime.so");
    candidates.insert(candidates.end(), {"libonnxruntime.so.1", "libonnxruntime.so"});
  }
  if (auto library = Library::open(candidates)) return *library;
  const char* reason = ::dlerror();
  throw device_error(
      fmt::format("cannot load ONNX Runtime: {}", reason == nullptr ? "not found" : reason),
      "install it (pip install onnxruntime) and set DETENT_ONNXRUNTIME to the path of its libonnxruntime.so");
}

Library load_cpu_plugin(const std::optional<fs::path>& explicit_path) {
  return load_plugin(explicit_path, "DETENT_CPU_PLUGIN", "libdetent_cpu.so", "the kernels of fine-tuning",
                     "they need oneDNN: build detent where its development files are (libdnnl-dev), or set "
                     "DETENT_CPU_PLUGIN to the path of libdetent_cpu.so");
}

Library load_cuda_plugin(const std::optional<fs::path>& explicit_path) {
  return load_plugin(explicit_path, "DETENT_CUDA_PLUGIN", "libdetent_cuda.so", "what runs on GPUs",
                     "it needs cuBLAS 13 and cuDNN 9 where the system finds them (LD_LIBRARY_PATH), and detent built "
                     "where nvcc is; or set DETENT_CUDA_PLUGIN to the path of libdetent_cuda.so");
}

}  // namespace detent::shim
