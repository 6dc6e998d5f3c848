// A shared library loaded at run time, so that the plain binary needs none of what may be absent.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace detent::shim {

class Library {
 public:
  /// Loads the first of `candidates` (paths, or bare names for the system's search) that can be loaded; nullopt when
  /// none can. A library once loaded stays for the life of the process: unloading runtimes that own threads is not
  /// safe.
  static std::optional<Library> open(const std::vector<std::string>& candidates);

  const std::string& name() const noexcept { return name_; }
  /// Throws device when the library has no such symbol.
  void* symbol(const char* symbol_name) const;

 private:
  Library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}
  void* handle_;
  std::string name_;
};

/// ONNX Runtime: `explicit_path` if given, else $DETENT_ONNXRUNTIME, else beside the executable (and in ../lib), else
/// the system's. An explicit path or variable that cannot be loaded is an error, not a reason to look elsewhere. Throws
/// device.
Library load_onnxruntime(const std::optional<std::filesystem::path>& explicit_path);

/// The kernels of fine-tuning: `explicit_path` if given, else $DETENT_CPU_PLUGIN, else libdetent_cpu.so beside the
/// executable (or in ../lib). Throws device.
Library load_cpu_plugin(const std::optional<std::filesystem::path>& explicit_path);

/// What runs on GPUs: `explicit_path` if given, else $DETENT_CUDA_PLUGIN, else libdetent_cuda.so beside the executable
/// (or in ../lib). It has an entry symbol for each room that uses it. Throws device.
Library load_cuda_plugin(const std::optional<std::filesystem::path>& explicit_path);

/// The program `detent` that was built or installed with this code: this executable itself, or one near the library.
std::optional<std::filesystem::path> find_program();

// Private to shim/: what files of detent and of ONNX Runtime are called on this system, and where detent's own are.

extern const char* const kProgram;
extern const char* const kRuntimeFile;
extern const char* const kCpuPluginFile;
extern const char* const kCudaPluginFile;

/// Names for the system's search; none where it would find what comes with the system, and is older.
std::vector<std::string> runtimes_of_system();

/// The file that this code was loaded from: the executable, or a library inside another program. Empty: not known.
std::filesystem::path own_file();

}  // namespace detent::shim
