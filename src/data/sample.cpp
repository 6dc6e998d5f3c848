#include "data/sample.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "onnx/model.h"
#include "onnx/packed_numbers.h"

namespace detent::data {

void TapReceiver::receive_on_device(std::size_t, const DeviceTensorView&) {
  throw internal_error("a receiver of host tensors was given one on a device");
}

Buffer allocate(std::uint64_t size, const std::string& where) {
  try {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max())) throw std::bad_alloc();
    const auto length = static_cast<std::size_t>(size);
    // new[] of bytes is aligned for any scalar, which make_shared's array is not.
    std::shared_ptr<std::byte[]> memory(std::make_unique_for_overwrite<std::byte[]>(length));
    return {memory, std::span(memory.get(), length)};
  } catch (const std::bad_alloc&) {
    throw resource_error(fmt::format("no memory for the {} of {}", format_size(size), where),
                         "store fewer rows in a file, or use .npy files, which are read in place");
  }
}

Array aligned(Array array, const std::string& where) {
  const auto element = static_cast<std::size_t>(std::max(8, onnx::bits_of(array.type)) / 8);
  if (reinterpret_cast<std::uintptr_t>(array.bytes.data()) % element == 0) return array;
  const Buffer copy = allocate(array.bytes.size(), where);
  std::copy(array.bytes.begin(), array.bytes.end(), copy.bytes.begin());
  array.bytes = copy.bytes;
  array.owner = copy.memory;
  return array;
}

std::uint64_t size_of(onnx::DataType type, std::span<const std::int64_t> shape, const std::string& where) {
  const auto count = onnx::element_count(shape);
  const auto size = count ? onnx::byte_count(type, *count) : std::nullopt;
  if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw bad_input(fmt::format("{}: impossible shape {}", where, describe_shape(shape)));
  }
  return *size;
}

namespace {

template <class T, class Fn>
std::vector<float> converted(std::span<const std::byte> bytes, const Fn& to_float) {
  std::vector<float> values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = to_float(value);
  }
  return values;
}

}  // namespace

bool holds_floats(onnx::DataType type) {
  using onnx::DataType;
  return type == DataType::float32 || type == DataType::float64 || type == DataType::float16 ||
         type == DataType::bfloat16;
}

bool holds_numbers(onnx::DataType type) { return holds_floats(type) || onnx::holds_integers(type); }

std::vector<float> to_floats(const Array& array) {
  const auto widened = [](auto value) { return static_cast<float>(value); };
  switch (array.type) {
    case onnx::DataType::boolean:
    case onnx::DataType::uint8: return converted<std::uint8_t>(array.bytes, widened);
    case onnx::DataType::int8: return converted<std::int8_t>(array.bytes, widened);
    case onnx::DataType::int16: return converted<std::int16_t>(array.bytes, widened);
    case onnx::DataType::uint16: return converted<std::uint16_t>(array.bytes, widened);
    case onnx::DataType::int32: return converted<std::int32_t>(array.bytes, widened);
    case onnx::DataType::uint32: return converted<std::uint32_t>(array.bytes, widened);
    case onnx::DataType::int64: return converted<std::int64_t>(array.bytes, widened);
    case onnx::DataType::uint64: return converted<std::uint64_t>(array.bytes, widened);
    case onnx::DataType::float32: return converted<float>(array.bytes, [](float v) { return v; });
    case onnx::DataType::float64: return converted<double>(array.bytes, [](double v) { return static_cast<float>(v); });
    case onnx::DataType::float16: return converted<std::uint16_t>(array.bytes, onnx::from_float16);
    case onnx::DataType::bfloat16: return converted<std::uint16_t>(array.bytes, onnx::from_bfloat16);
    default: throw internal_error("floats were wanted of an array of another type");
  }
}

Array as_floats(const Array& array, onnx::DataType type) {
  using onnx::DataType;
  const bool low = type == DataType::float16 || type == DataType::bfloat16;
  if (array.type == type || !holds_floats(array.type) || (!low && type != DataType::float32)) return array;
  const auto values = to_floats(array);
  const auto owned = [&](auto numbers) {
    auto owner = std::make_shared<const decltype(numbers)>(std::move(numbers));
    return Array{type, array.shape, std::as_bytes(std::span(*owner)), owner};
  };
  if (!low) return owned(values);
  std::vector<std::uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(),
                 type == DataType::float16 ? onnx::to_float16 : onnx::to_bfloat16);
  return owned(std::move(halves));
}

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
