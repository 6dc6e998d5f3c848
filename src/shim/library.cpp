#include "shim/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

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

/// Where a library of this name is when detent is installed or was built.
std::vector<std::string> installed(const char* name) {
  const fs::path here = own_file().parent_path();
  if (here.empty()) return {};  // not known without /proc; the current folder is none of these
  return {(here / name).string(), (here.parent_path() / "lib" / name).string()};
}

/// Why dlopen() failed; what the machine lacks is told from what is wrong with the library.
Error load_failure(const char* what, const std::string& hint) {
  const char* reason = ::dlerror();
  const std::string text = fmt::format("cannot load {}: {}", what, reason == nullptr ? "not found" : reason);
  for (const int code : {EMFILE, ENFILE, ENOMEM}) {
    if (text.ends_with(errno_text(code))) return failed_call(code, text.substr(0, text.rfind(": ")), ErrorKind::device);
  }
  if (text.ends_with("failed to map segment from shared object"))  // glibc names all other reasons
    return failed_call(ENOMEM, text, ErrorKind::device);
  return device_error(text, hint);
}

// Opening a FIFO waits for one who writes, and reading a device may do anything.
bool can_be_opened(const std::string& name) {
  if (!fs::path(name).has_parent_path()) return true;  // the loader searches for it
  std::error_code failed;
  const auto kind = fs::status(name, failed).type();
  return failed || kind == fs::file_type::regular || kind == fs::file_type::directory;  // the loader tells more
}

// The first that can be loaded. Where the machine keeps one from it, that is told, and not that the others are missing.
Library load_first(const std::vector<std::string>& candidates, const char* what, const std::string& hint) {
  std::optional<Error> failure;
  for (const auto& name : candidates) {
    if (!can_be_opened(name)) {
      failure.emplace(device_error(fmt::format("cannot load {}: '{}' is not a regular file", what, name), hint));
      continue;
    }
    if (auto library = Library::open({name})) return *library;
    failure.emplace(load_failure(what, hint));
    if (failure->kind() == ErrorKind::resource) break;
  }
  throw *failure;
}

Library load_plugin(const std::optional<fs::path>& explicit_path, const char* variable, const char* name,
                    const char* what, const char* hint) {
  std::vector<std::string> candidates = chosen(explicit_path, variable);
  if (candidates.empty()) {
    // Of the usual places the first where the plugin is: why that one cannot be loaded is then the reason to report.
    candidates = installed(name);
    std::error_code unknown;
    if (!candidates.empty() && fs::exists(candidates.front(), unknown)) candidates.resize(1);
    if (candidates.empty()) candidates = {name};
  }
  return load_first(candidates, what, hint);
}

}  // namespace

std::optional<Library> Library::open(const std::vector<std::string>& candidates) {
  for (const auto& name : candidates) {
    if (!can_be_opened(name)) continue;
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
  if (::setenv("ORT_DISABLE_TELEMETRY", "1", 1) != 0)
    throw resource_error("no memory to switch off the telemetry of ONNX Runtime");
  std::vector<std::string> candidates = chosen(explicit_path, "DETENT_ONNXRUNTIME");
  if (candidates.empty()) {
    candidates = installed(kRuntimeFile);
    const auto of_system = runtimes_of_system();
    candidates.insert(candidates.end(), of_system.begin(), of_system.end());
  }
  return load_first(candidates, "ONNX Runtime",
                    fmt::format("install it (pip install onnxruntime) and set DETENT_ONNXRUNTIME to the path of its {}",
                                kRuntimeFile));
}

Library load_cpu_plugin(const std::optional<fs::path>& explicit_path) {
  return load_plugin(explicit_path, "DETENT_CPU_PLUGIN", kCpuPluginFile, "the kernels of fine-tuning",
                     "they need oneDNN: build detent where its development files are (libdnnl-dev), or set "
                     "DETENT_CPU_PLUGIN to the path of libdetent_cpu.so");
}

Library load_cuda_plugin(const std::optional<fs::path>& explicit_path) {
  return load_plugin(explicit_path, "DETENT_CUDA_PLUGIN", kCudaPluginFile, "what runs on GPUs",
                     "it needs cuBLAS 13 and cuDNN 9 where the system finds them (LD_LIBRARY_PATH), and detent built "
                     "where nvcc is; or set DETENT_CUDA_PLUGIN to the path of libdetent_cuda.so");
}

std::optional<fs::path> find_program() {
  const fs::path here = own_file().parent_path(), above = here.parent_path(), root = above.parent_path();
  if (here.empty()) return std::nullopt;
  const auto is_lib = [](const fs::path& folder) { return folder.filename().string().starts_with("lib"); };
  std::vector<fs::path> candidates{here / kProgram};  // of an executable and a wheel
  // What lies above belongs to whoever made that folder, unless it is one that detent is installed or built in.
  if (here.filename() == "tests") candidates.push_back(above / kProgram);
  if (is_lib(here)) candidates.push_back(above / "bin" / kProgram);
  if (is_lib(above)) candidates.push_back(root / "bin" / kProgram);
  if (above.filename() == "python") candidates.push_back(root / kProgram);
  for (const auto& path : candidates) {
    std::error_code failed;
    if (fs::is_regular_file(path, failed) && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

}  // namespace detent::shim
