#include "shim/library.h"

#include "base/windows/encoding.h"

namespace detent::shim {

const char* const kProgram = "detent.exe";
const char* const kRuntimeFile = "onnxruntime.dll";
const char* const kCpuPluginFile = "libdetent_cpu.dll";
const char* const kCudaPluginFile = "libdetent_cuda.dll";  // never built

std::vector<std::string> runtimes_of_system() { return {}; }

std::filesystem::path own_file() { return windows::file_with(reinterpret_cast<const void*>(&own_file)); }

}  // namespace detent::shim
