// Stands for ONNX Runtime: the library that $REAL_ONNXRUNTIME names, which says that it has the execution provider that
// $HAS_PROVIDER names.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace {

const OrtApiBase* real() {
  static const auto* base = [] {
    void* library = dlopen(std::getenv("REAL_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    using GetApiBase = const OrtApiBase* (*)();
    return reinterpret_cast<GetApiBase>(dlsym(library, "OrtGetApiBase"))();
  }();
  return base;
}

OrtStatus* ORT_API_CALL providers(char*** names, int* count) noexcept {
  static std::array<char*, 2> all{std::getenv("HAS_PROVIDER"), const_cast<char*>("CPUExecutionProvider")};
  *names = all.data();
  *count = static_cast<int>(all.size());
  return nullptr;
}
OrtStatus* ORT_API_CALL release(char**, int) noexcept { return nullptr; }

const OrtApi* ORT_API_CALL api(std::uint32_t version) noexcept {
  static OrtApi changed = *real()->GetApi(version);
  changed.GetAvailableProviders = providers;
  changed.ReleaseAvailableProviders = release;
  return &changed;
}
const char* ORT_API_CALL version() noexcept { return real()->GetVersionString(); }

}  // namespace

extern "C" const OrtApiBase* ORT_API_CALL OrtGetApiBase() noexcept {
  static const OrtApiBase base{api, version};
  return &base;
}
