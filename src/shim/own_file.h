// Private to shim/: what files of detent and of ONNX Runtime are called on this system, and where detent's own are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace detent::shim {

extern const char* const kProgram;
extern const char* const kRuntimeFile;
extern const char* const kCpuPluginFile;
extern const char* const kCudaPluginFile;

/// Names for the system's search; none where it would find what comes with the system, and is older.
std::vector<std::string> runtimes_of_system();

/// The file that this code was loaded from: the executable, or a library inside another program. Empty: not known.
std::filesystem::path own_file();

}  // namespace detent::shim
