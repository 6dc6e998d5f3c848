// What all fuzz targets share. A target is a function of bytes that may do nothing but return: whatever it throws, any
// crash and any report of a sanitizer is a finding. The same targets are linked with libFuzzer (main_libfuzzer.cpp) and
// with a program that replays the corpora (main_replay.cpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "detent/error.h"

namespace detent::fuzz {

using Bytes = std::span<const std::byte>;

/// A kind of protobuf message: which of its fields are messages of which kind.
struct Kind;

struct Target {
  std::string name;  // also of its folder in corpus/
  void (*run)(Bytes input);
  /// For inputs that are protobuf messages, behind `prefix` bytes that choose the kind by their first (modulo). The
  /// mutator of messages.h then changes fields instead of bytes.
  std::vector<const Kind*> kinds = {};
  std::size_t prefix = 0;
  /// How many inputs of a parser in memory are run in the time of one of this target's, roughly.
  std::size_t cost = 1;
};

/// All that are linked, in no order.
inline std::vector<Target>& targets() {
  static std::vector<Target> all;
  return all;
}

/// Defined once in each target's file: adds it to targets().
struct Registered {
  explicit Registered(Target target) { targets().push_back(std::move(target)); }
};

/// Ends the process with a line that says what was expected.
inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: it does not hold that %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

/// Whether `act` came to its end. An Error is the right answer to damaged input, if it is not a bug's. (Messages repeat
/// words of an input as they are; who prints them escapes them.) With $FUZZ_SHOW set, errors are printed.
template <typename Act>
bool try_to(Act act) {
  static const bool show = std::getenv("FUZZ_SHOW") != nullptr;
  try {
    act();
    return true;
  } catch (const Error& error) {
    const bool is_bug = error.kind() == ErrorKind::internal;
    if (show || is_bug) std::fprintf(stderr, "fuzz: %s\n", printable(error.what()).c_str());
    require(!is_bug, "no input leads to an internal error");
    return false;
  }
}

/// Reads every byte, which has to be there.
inline void touch(Bytes bytes) {
  volatile std::uint8_t sum = 0;
  for (const std::byte b : bytes) sum = static_cast<std::uint8_t>(sum ^ static_cast<std::uint8_t>(b));
}

/// Takes an input apart from the front; what is missing is 0 or empty.
class Parts {
 public:
  explicit Parts(Bytes input) : left_(input) {}

  bool empty() const { return left_.empty(); }
  std::uint8_t byte() { return number<std::uint8_t>(); }
  template <typename T>
  T number() {
    T value{};
    const Bytes from = take(sizeof value);
    std::copy(from.begin(), from.end(), reinterpret_cast<std::byte*>(&value));
    return value;
  }
  Bytes take(std::size_t size) {
    const Bytes part = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(part.size());
    return part;
  }
  /// A part with its length, 16 bits, in front.
  Bytes piece() { return take(number<std::uint16_t>()); }
  std::string text() { return std::string(as_text(piece())); }
  Bytes rest() { return take(left_.size()); }

 private:
  Bytes left_;
};

/// A file in memory, for readers that want a path.
class MemoryFile {
 public:
  explicit MemoryFile(Bytes contents);
  const std::string& path() const { return path_; }

 private:
  UniqueFd fd_;
  std::string path_;
};

/// A folder of this process, which lives as long as the process does and goes with it. In memory if $TMPDIR is.
const std::filesystem::path& folder();

/// Writes a file there, with the folders above it.
std::filesystem::path put(const std::filesystem::path& name, Bytes contents);

/// An empty folder in folder().
std::filesystem::path fresh_folder(const std::string& name);

/// A folder `external` with data files for tensors, made once, and beside it what a location must not lead to:
/// "data.bin" (256 bytes, 0 to 255), "sub/data.bin"; "link.bin", "up", "hard.bin" and "pipe", which lead outside.
const std::filesystem::path& external_folder();

}  // namespace detent::fuzz
