#include "data/formats/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace detent::data {
namespace {

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

std::string_view digits_at(std::string_view text, std::size_t at) noexcept {
  std::size_t end = at;
  while (end < text.size() && is_digit(text[end])) ++end;
  return text.substr(at, end - at);
}

std::string_view without_zeros(std::string_view digits) noexcept {
  const std::size_t first = digits.find_first_not_of('0');
  return first == std::string_view::npos ? std::string_view{} : digits.substr(first);
}

}  // namespace

std::string quoted(const std::filesystem::path& path) { return fmt::format("'{}'", printable(path.string(), 4096)); }

std::string describe_shape(std::span<const std::int64_t> shape) {
  std::vector<std::string> dims;
  for (const std::int64_t d : shape) dims.push_back(d < 0 ? "?" : fmt::to_string(d));
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::string describe(onnx::DataType type, std::span<const std::int64_t> shape) {
  return fmt::format("{} {}", onnx::name_of(type), describe_shape(shape));
}

std::string describe(const InputSpec& input) {
  if (!input.shape) return fmt::format("{} of any shape", onnx::name_of(input.type));
  return describe(input.type, *input.shape);
}

std::string describe_inputs(std::span<const InputSpec> inputs) {
  constexpr std::size_t kShown = 12;
  std::vector<std::string> parts;
  for (const InputSpec& input : inputs.first(std::min(kShown, inputs.size()))) {
    parts.push_back(fmt::format("'{}' {}", printable(input.name, 120), describe(input)));
  }
  if (inputs.size() > kShown) parts.push_back(fmt::format("and {} more", inputs.size() - kShown));
  return fmt::format("the model's inputs: {}", fmt::join(parts, ", "));
}

bool natural_less(std::string_view a, std::string_view b) noexcept {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const std::string_view run_a = digits_at(a, i);
      const std::string_view run_b = digits_at(b, j);
      const std::string_view value_a = without_zeros(run_a);
      const std::string_view value_b = without_zeros(run_b);
      if (value_a.size() != value_b.size()) return value_a.size() < value_b.size();
      if (value_a != value_b) return value_a < value_b;
      i += run_a.size();
      j += run_b.size();
    } else if (a[i] != b[j]) {
      return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
    } else {
      ++i;
      ++j;
    }
  }
  const std::size_t left_a = a.size() - i;
  const std::size_t left_b = b.size() - j;
  return (left_a == 0) != (left_b == 0) ? left_a == 0 : a < b;  // "a01" and "a1" differ only in zeros
}

}  // namespace detent::data
