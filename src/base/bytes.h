// Sizes and counts as users write and read them ("512MiB", "1.5 GiB", "2 nodes"), and views of typed data as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace detent {

/// Parses "123", "64KiB", "1.5GiB", "2GB" (GB = 10^9, GiB = 2^30; case is ignored). Throws usage on anything else.
std::uint64_t parse_size(std::string_view text);

/// Formats with binary units and at most one decimal: "1.5 GiB", "640 KiB", "12 B".
std::string format_size(std::uint64_t bytes);

/// Two different sizes so that they read as different, in bytes where format_size() would round them to the same text.
std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b);

/// A count with a decimal prefix: "812", "4.1 M", "118 G".
std::string format_count(std::uint64_t count);

/// "1 node", "2 nodes".
std::string count_with_noun(std::uint64_t count, std::string_view noun);

inline std::span<const std::byte> as_byte_span(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace detent
