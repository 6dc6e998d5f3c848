// Statistics files in memory, right and wrong.
#pragma once

#include <xxhash.h>

#include <cstring>

#include "calibration/statistics_file.h"
#include "calibration/support.h"

namespace detent::calibration::test {

constexpr std::size_t kHeader = 32;
inline const std::string kWhere = "statistics 'some/file.stats'";

inline std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// A message in its envelope, however wrong it may be.
inline std::string wrap(const std::string& message) {
  std::string bytes = encode(Statistics()).substr(0, kHeader);
  const std::uint64_t size = message.size();
  const std::uint64_t checksum = XXH3_64bits(message.data(), message.size());
  std::memcpy(bytes.data() + 16, &size, sizeof size);
  std::memcpy(bytes.data() + 24, &checksum, sizeof checksum);
  return bytes + message;
}

inline void expect_refused(const std::string& bytes, const std::string& says = "") {
  try {
    decode(bytes_of(bytes), kWhere);
    ADD_FAILURE() << "was accepted, expected: " << says;
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(e.kind(), ErrorKind::bad_input) << text;
    EXPECT_EQ(text.rfind(kWhere, 0), 0U) << text;
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_FALSE(e.hint().empty());
  }
}

}  // namespace detent::calibration::test
