// A driver with as many devices as FAKE_CUDA_DEVICES says (2), which starts as FAKE_CUDA_INIT says (0: well).
#include <cstdlib>

namespace {
int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}
}  // namespace

extern "C" {
int cuInit(unsigned) { return number("FAKE_CUDA_INIT", 0); }
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES", 2);
  return 0;
}
int cuGetErrorName(int code, const char** name) {
  *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
}
