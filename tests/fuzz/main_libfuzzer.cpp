// One program for all targets: `fuzz TARGET [libFuzzer's options and folders]`.
#include <cstring>
#include <string>

#include "fuzz/changes.h"
#include "fuzz/fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

using detent::fuzz::Target;

const Target* chosen = nullptr;
constexpr const char* kVariable = "FUZZ_TARGET";  // for the processes that libFuzzer starts without our word

std::string changed(std::string bytes, std::size_t max_size) {
  const std::size_t size = bytes.size();
  bytes.resize(std::max(max_size, size));
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

std::size_t mutated(std::uint8_t* data, std::size_t size, std::string_view other, std::size_t max_size,
                    unsigned int seed) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string result = detent::fuzz::changed_by_fields(*chosen, input, other, max_size, seed, changed);
  std::memcpy(data, result.data(), result.size());
  return result.size();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  const char* inherited = std::getenv(kVariable);
  const std::string name = inherited != nullptr ? inherited : *count > 1 ? (*words)[1] : "";
  for (const Target& target : detent::fuzz::targets()) {
    if (target.name == name) chosen = &target;
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "usage: fuzz TARGET [OPTION...] [FOLDER...], TARGET one of:\n");
    for (const Target& target : detent::fuzz::targets()) std::fprintf(stderr, "  %s\n", target.name.c_str());
    std::exit(2);
  }
  if (inherited != nullptr) return 0;
  ::setenv(kVariable, name.c_str(), 1);
  for (int i = 1; i + 1 < *count; ++i) (*words)[i] = (*words)[i + 1];
  (*words)[--*count] = nullptr;
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed) {
  if (chosen->kinds.empty() || size <= chosen->prefix || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return mutated(data, size, {reinterpret_cast<const char*>(data), size}, max_size, seed);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* data, std::size_t size, const std::uint8_t* other,
                                                 std::size_t other_size, std::uint8_t* out, std::size_t max_size,
                                                 unsigned int seed) {
  size = std::min(size, max_size);
  std::memcpy(out, data, size);
  if (chosen->kinds.empty() || size <= chosen->prefix) return LLVMFuzzerMutate(out, size, max_size);
  return mutated(out, size, {reinterpret_cast<const char*>(other), other_size}, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run(std::as_bytes(std::span(data, size)));
  return 0;
}
