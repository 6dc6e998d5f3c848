// Files whose envelope is in order.
#pragma once

#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/numbers.h"
#include "fuzz/fuzz.h"

namespace detent::fuzz {

inline Fingerprint fingerprint_of(Bytes bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.result();
}

inline std::string checksum(Bytes bytes) { return fingerprint_of(bytes).text(); }

/// A statistics file: the message with the header of a sound one in front (docs/statistics.md).
inline std::string sealed(std::string_view message) {
  std::string file("detent\x1as\x01\0\0\0\0\0\0\0", 16);
  const std::uint64_t words[] = {message.size(), XXH3_64bits(message.data(), message.size())};
  file.append(reinterpret_cast<const char*>(words), sizeof words);
  return file.append(message);
}

/// As solve::SealedFile leaves it.
inline std::string sealed_file(std::string content) {
  const auto sum = fingerprint_of(as_byte_span(content));
  return content.append(as_text(std::as_bytes(std::span(&sum, 1))));
}

/// A file of solved layers: what tells of them, and their data.
inline std::string solved_file(std::string_view layers, Bytes data) {
  const std::uint64_t size = layers.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof size);
  return sealed_file(file.append(layers).append(as_text(data)));
}

}  // namespace detent::fuzz
