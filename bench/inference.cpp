// Plain ONNX Runtime inference over a folder of samples: the yardstick for the memory and the time of calibration.
// It shares no code with the quantizer on purpose. Usage: see README.md in this folder.
#define ORT_API_MANUAL_INIT
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <onnxruntime_cxx_api.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Options {
  std::string model, data, runtime = "build/libonnxruntime.so";
  int threads = 0;  // 0: the runtime's own choice
  long runs = 0;    // 0: each sample once
  GraphOptimizationLevel opt = ORT_ENABLE_ALL;
  bool set_opt = false, prepack = true, pattern = true, arena = true, spin = true, same = false;
  long mmap_threshold = 0;  // bytes, 0: glibc's own moving threshold
};

[[noreturn]] void usage() {
  std::fputs(
      "bench_inference MODEL DATA_DIR [--threads N] [--repeat-to N] [--runtime LIB] [--tuned]\n"
      "  single settings, after --tuned they override it: --opt none|basic|extended|all --prepack 0|1\n"
      "  --pattern 0|1 --arena 0|1|same --spin 0|1 --mmap-threshold BYTES\n",
      stderr);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  if (const char* env = std::getenv("DETENT_ONNXRUNTIME")) o.runtime = env;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    std::string a = argv[i];
    if (a.rfind("--", 0) != 0) {
      files.push_back(a);
      continue;
    }
    if (a == "--tuned") {
      o.opt = ORT_ENABLE_BASIC;
      o.set_opt = true;
      o.prepack = o.pattern = o.arena = o.spin = false;
      o.mmap_threshold = 64 << 10;
      continue;
    }
    if (++i >= argc) usage();
    std::string v = argv[i];
    if (a == "--threads")
      o.threads = std::stoi(v);
    else if (a == "--repeat-to")
      o.runs = std::stol(v);
    else if (a == "--runtime")
      o.runtime = v;
    else if (a == "--prepack")
      o.prepack = v == "1";
    else if (a == "--pattern")
      o.pattern = v == "1";
    else if (a == "--arena")
      o.arena = v != "0", o.same = v == "same";
    else if (a == "--spin")
      o.spin = v == "1";
    else if (a == "--mmap-threshold")
      o.mmap_threshold = std::stol(v);
    else if (a == "--opt") {
      o.set_opt = true;
      o.opt = v == "none"       ? ORT_DISABLE_ALL
              : v == "basic"    ? ORT_ENABLE_BASIC
              : v == "extended" ? ORT_ENABLE_EXTENDED
                                : ORT_ENABLE_ALL;
    } else
      usage();
  }
  if (files.size() != 2) usage();
  o.model = files[0];
  o.data = files[1];
  return o;
}

// One sample file, mapped: its tensors point into the mapping, so a sample costs its own pages and no copy.
class Sample {
 public:
  explicit Sample(const std::string& path) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat st {};
    if (fd < 0 || ::fstat(fd, &st) != 0) throw std::runtime_error("cannot open " + path);
    size_ = static_cast<size_t>(st.st_size);
    map_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    ::close(fd);
    if (map_ == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    if (std::memcmp(bytes(8), "DETBIN1\0", 8) != 0) throw std::runtime_error("not a sample file: " + path);
    auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    for (auto n = number<uint32_t>(); n > 0; --n) {
      auto length = number<uint32_t>();
      names.emplace_back(bytes(length), length);
      auto type = static_cast<ONNXTensorElementDataType>(number<uint32_t>());
      std::vector<int64_t> dims(number<uint32_t>());
      for (auto& d : dims) d = number<int64_t>();
      auto size = number<uint64_t>();
      at_ = (at_ + 63) / 64 * 64;
      values.push_back(
          Ort::Value::CreateTensor(memory, const_cast<char*>(bytes(size)), size, dims.data(), dims.size(), type));
    }
  }
  ~Sample() { ::munmap(map_, size_); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  std::vector<std::string> names;
  std::vector<Ort::Value> values;

 private:
  const char* bytes(size_t n) {
    if (n > size_ || at_ > size_ - n) throw std::runtime_error("sample file is cut short");
    const char* p = static_cast<const char*>(map_) + at_;
    at_ += n;
    return p;
  }
  template <class T>
  T number() {
    T v;
    std::memcpy(&v, bytes(sizeof v), sizeof v);
    return v;
  }
  void* map_ = nullptr;
  size_t size_ = 0, at_ = 0;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

double peak_mb() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) / 1024;
}

int run(const Options& o) {
  // A fixed threshold gives each large tensor its own mapping, which returns to the system when it is freed.
  if (o.mmap_threshold) ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(o.mmap_threshold));
  ::setenv("ORT_DISABLE_TELEMETRY", "1", 1);
  void* lib = ::dlopen(o.runtime.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!lib) throw std::runtime_error(::dlerror());
  auto base = reinterpret_cast<const OrtApiBase* (*)()>(::dlsym(lib, "OrtGetApiBase"));
  const OrtApi* api = base ? base()->GetApi(ORT_API_VERSION) : nullptr;
  if (!api) throw std::runtime_error("the runtime is older than the headers of this program");
  Ort::InitApi(api);

  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "bench");
  env.DisableTelemetryEvents();
  Ort::SessionOptions so;
  if (o.threads > 0) so.SetIntraOpNumThreads(o.threads);
  if (o.set_opt) so.SetGraphOptimizationLevel(o.opt);
  if (!o.pattern) so.DisableMemPattern();
  if (!o.arena) so.DisableCpuMemArena();
  if (o.same) {  // grow by what is asked for, not by powers of two
    Ort::ArenaCfg config(0, 1, -1, -1);
    env.CreateAndRegisterAllocator(Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault), config);
    so.AddConfigEntry("session.use_env_allocators", "1");
  }
  if (!o.prepack) so.AddConfigEntry("session.disable_prepacking", "1");
  if (!o.spin) so.AddConfigEntry("session.intra_op.allow_spinning", "0");

  std::vector<std::string> files;
  for (const auto& f : std::filesystem::directory_iterator(o.data))
    if (f.path().extension() == ".bin") files.push_back(f.path().string());
  std::sort(files.begin(), files.end());
  if (files.empty()) throw std::runtime_error("no .bin samples in " + o.data);
  const long runs = o.runs > 0 ? o.runs : static_cast<long>(files.size());

  const double t0 = now();
  Ort::Session session(env, o.model.c_str(), so);
  const double t1 = now(), cpu1 = cpu_seconds(), session_peak = peak_mb();
  Ort::AllocatorWithDefaultOptions names;
  std::vector<Ort::AllocatedStringPtr> outputs;
  std::vector<const char*> out, in;
  for (size_t i = 0; i < session.GetOutputCount(); ++i) {
    outputs.push_back(session.GetOutputNameAllocated(i, names));
    out.push_back(outputs.back().get());
  }
  for (long i = 0; i < runs; ++i) {
    Sample s(files[static_cast<size_t>(i) % files.size()]);
    in.clear();
    for (const auto& name : s.names) in.push_back(name.c_str());
    // The outputs are the runtime's own allocation, freed here: no copy, and none alive during the next run.
    session.Run(Ort::RunOptions{nullptr}, in.data(), s.values.data(), in.size(), out.data(), out.size());
  }
  std::printf(
      "{\"session_s\": %.4f, \"loop_s\": %.4f, \"loop_cpu_s\": %.4f, \"runs\": %ld, \"session_peak_mb\": %.1f, "
      "\"peak_rss_mb\": %.1f}\n",
      t1 - t0, now() - t1, cpu_seconds() - cpu1, runs, session_peak, peak_mb());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try { return run(parse(argc, argv)); } catch (const std::exception& e) {
  std::fprintf(stderr, "bench_inference: %s\n", e.what());
  return 1;
}
