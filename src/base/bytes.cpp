#include "base/bytes.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace detent {

std::uint64_t parse_size(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{{"", 1.0},
                                                                               {"b", 1.0},
                                                                               {"k", 1024.0},
                                                                               {"kib", 1024.0},
                                                                               {"kb", 1e3},
                                                                               {"m", 1048576.0},
                                                                               {"mib", 1048576.0},
                                                                               {"mb", 1e6},
                                                                               {"g", 1073741824.0},
                                                                               {"gib", 1073741824.0},
                                                                               {"gb", 1e9}}};
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  for (const auto& [name, factor] : kUnits) {
    const double bytes = value * factor;
    if (status == std::errc() && unit == name && value >= 0 && bytes < 9.2e18) {
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  throw usage_error(fmt::format("'{}' is not a size", text), "write it like 512MiB, 1.5GiB or 2000000");
}

namespace {

template <std::size_t N>
std::string scaled(std::uint64_t amount, double step, const std::array<const char*, N>& names) {
  auto value = static_cast<double>(amount);
  std::size_t unit = 0;
  while (value >= step && unit + 1 < N) {
    value /= step;
    ++unit;
  }
  const bool whole = unit == 0 || value >= 100;
  std::string text = whole ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}", value);
  if (*names[unit] != 0) text += fmt::format(" {}", names[unit]);
  return text;
}

}  // namespace

std::string format_size(std::uint64_t bytes) { return scaled<5>(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}); }

std::pair<std::string, std::string> format_sizes(std::uint64_t a, std::uint64_t b) {
  std::pair<std::string, std::string> texts{format_size(a), format_size(b)};
  if (a == b || texts.first != texts.second) return texts;
  return {fmt::format("{} B", a), fmt::format("{} B", b)};
}

std::string format_count(std::uint64_t count) { return scaled<5>(count, 1000, {"", "k", "M", "G", "T"}); }

std::string count_with_noun(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace detent
