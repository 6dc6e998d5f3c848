// Stands for ONNX Runtime: the library that $REAL_ONNXRUNTIME names, with a fault in its optimizer: sessions that
// optimize read float32 tensors of the name $FAULTY_TENSOR as $FAULTY_TIMES what they are. Sessions that do not, as one
// asks them for types, end by an assertion where a model in memory holds the text $FAULTY_TEXT.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

namespace {

const OrtApiBase* real() {
  static const auto* base = [] {
    void* library = dlopen(std::getenv("REAL_ONNXRUNTIME"), RTLD_NOW | RTLD_LOCAL);
    using GetApiBase = const OrtApiBase* (*)();
    return reinterpret_cast<GetApiBase>(dlsym(library, "OrtGetApiBase"))();
  }();
  return base;
}

const OrtApi* real_api = nullptr;
std::set<const OrtSessionOptions*>& without_optimizer() {
  static std::set<const OrtSessionOptions*> all;
  return all;
}
std::set<const OrtSessionOptions*>& for_types() {
  static std::set<const OrtSessionOptions*> all;
  return all;
}

std::uint64_t varint(std::string_view& message) {
  std::uint64_t value = 0;
  for (int shift = 0; !message.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(message.front());
    message.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// The parts of a message that are strings, bytes or messages.
void for_each_part(std::string_view message, const std::function<void(std::uint64_t, std::string_view)>& visit) {
  while (!message.empty()) {
    const auto key = varint(message);
    if ((key & 7) == 0) {
      varint(message);
      continue;
    }
    const std::size_t size = (key & 7) == 2 ? varint(message) : (key & 7) == 1 ? 8 : 4;
    if (size > message.size()) return;
    if ((key & 7) == 2) visit(key >> 3, message.substr(0, size));
    message.remove_prefix(size);
  }
}

void spoil(std::string_view tensor) {
  constexpr std::uint64_t kName = 8, kRawData = 9;
  bool is_it = false;
  for_each_part(tensor,
                [&](auto field, auto part) { is_it |= field == kName && part == std::getenv("FAULTY_TENSOR"); });
  const float times = std::strtof(std::getenv("FAULTY_TIMES"), nullptr);
  for_each_part(tensor, [&](auto field, auto part) {
    if (!is_it || field != kRawData) return;
    for (std::size_t at = 0; at + sizeof(float) <= part.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, part.data() + at, sizeof(value));
      value *= times;
      std::memcpy(const_cast<char*>(part.data()) + at, &value, sizeof(value));  // of a copy that is ours
    }
  });
}

OrtStatus* ORT_API_CALL from_memory(const OrtEnv* env, const void* model, std::size_t size,
                                    const OrtSessionOptions* options, OrtSession** session) noexcept {
  constexpr std::uint64_t kGraph = 7, kInitializer = 5;
  std::string changed(static_cast<const char*>(model), size);
  const char* const text = std::getenv("FAULTY_TEXT");
  if (text != nullptr && for_types().contains(options) && changed.find(text) != changed.npos) std::abort();
  if (std::getenv("FAULTY_TENSOR") != nullptr && !without_optimizer().contains(options)) {
    for_each_part(changed, [](auto field, auto graph) {
      if (field != kGraph) return;
      for_each_part(graph, [](auto inner, auto tensor) {
        if (inner == kInitializer) spoil(tensor);
      });
    });
  }
  return real_api->CreateSessionFromArray(env, changed.data(), changed.size(), options, session);
}

OrtStatus* ORT_API_CALL from_file(const OrtEnv* env, const ORTCHAR_T* path, const OrtSessionOptions* options,
                                  OrtSession** session) noexcept {
  std::ifstream file(path, std::ios::binary);
  const std::string model{std::istreambuf_iterator<char>(file), {}};
  return from_memory(env, model.data(), model.size(), options, session);
}

OrtStatus* ORT_API_CALL set_level(OrtSessionOptions* options, GraphOptimizationLevel level) noexcept {
  if (level < ORT_ENABLE_EXTENDED) without_optimizer().insert(options);
  if (level == ORT_DISABLE_ALL) for_types().insert(options);
  return real_api->SetSessionGraphOptimizationLevel(options, level);
}
void ORT_API_CALL release(OrtSessionOptions* options) noexcept {
  without_optimizer().erase(options);
  for_types().erase(options);
  real_api->ReleaseSessionOptions(options);
}

const OrtApi* ORT_API_CALL api(std::uint32_t version) noexcept {
  real_api = real()->GetApi(version);
  static OrtApi changed = *real_api;
  changed.CreateSession = from_file;
  changed.CreateSessionFromArray = from_memory;
  changed.SetSessionGraphOptimizationLevel = set_level;
  changed.ReleaseSessionOptions = release;
  return &changed;
}
const char* ORT_API_CALL version() noexcept { return real()->GetVersionString(); }

}  // namespace

extern "C" const OrtApiBase* ORT_API_CALL OrtGetApiBase() noexcept {
  static const OrtApiBase base{api, version};
  return &base;
}
