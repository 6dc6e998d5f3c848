// A stand-in for ONNX Runtime's library: hands every call on to the real one, and sums up the CPU time that loading,
// running and unloading models takes, so that what is left is the caller's own. $TIMED_RUNTIME_LIBRARY is the real
// library, $TIMED_RUNTIME_SECONDS the file that gets the sum when the process ends.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace {

const OrtApi* real = nullptr;
double seconds = 0;

double cpu_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Timed {
  double start = cpu_now();
  ~Timed() { seconds += cpu_now() - start; }
};

OrtStatus* ORT_API_CALL create_session(const OrtEnv* env, const void* model, size_t size,
                                       const OrtSessionOptions* options, OrtSession** session) noexcept {
  const Timed timed;
  return real->CreateSessionFromArray(env, model, size, options, session);
}

OrtStatus* ORT_API_CALL run(OrtSession* session, const OrtRunOptions* options, const char* const* input_names,
                            const OrtValue* const* inputs, size_t input_count, const char* const* output_names,
                            size_t output_count, OrtValue** outputs) noexcept {
  const Timed timed;
  return real->Run(session, options, input_names, inputs, input_count, output_names, output_count, outputs);
}

void ORT_API_CALL release_session(OrtSession* session) noexcept {
  const Timed timed;
  real->ReleaseSession(session);
}

void write_seconds() {
  const char* path = std::getenv("TIMED_RUNTIME_SECONDS");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) return;
  std::fprintf(file, "%.6f\n", seconds);
  std::fclose(file);
}

const OrtApiBase* real_base() {
  static const auto* base = [] {
    void* library = dlopen(std::getenv("TIMED_RUNTIME_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    std::atexit(write_seconds);
    return reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"))();
  }();
  return base;
}

const OrtApi* ORT_API_CALL timed_api(uint32_t version) noexcept {
  static OrtApi api;
  real = real_base()->GetApi(version);
  if (real == nullptr) return nullptr;
  api = *real;
  api.CreateSessionFromArray = create_session;
  api.Run = run;
  api.ReleaseSession = release_session;
  return &api;
}

const char* ORT_API_CALL version() noexcept { return real_base()->GetVersionString(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const OrtApiBase* ORT_API_CALL OrtGetApiBase() noexcept {
  static const OrtApiBase base{timed_api, version};
  return &base;
}
