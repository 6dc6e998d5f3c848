#include "data/synthetic_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "data/buffer.h"
#include "data/given_values.h"
#include "onnx/half.h"

namespace detent::data {
namespace {

constexpr std::int64_t kChannels = 3;
constexpr std::size_t kPictureRank = 4;

std::int64_t free_dimension(const std::vector<std::int64_t>& declared, std::size_t axis, const MadeUp& how) {
  if (axis == 0) return 1;
  if (declared.size() < kPictureRank) return how.steps;
  const bool channels_known = declared[1] >= 0 || declared.back() >= 0;
  return axis == 1 && !channels_known ? kChannels : how.pixels;
}

std::vector<std::int64_t> shape_of(const InputSpec& input, const std::vector<std::int64_t>* given, const MadeUp& how) {
  if (given != nullptr) {
    const auto fits = [](std::int64_t declared, std::int64_t value) { return declared < 0 || declared == value; };
    if (!input.shape || std::equal(input.shape->begin(), input.shape->end(), given->begin(), given->end(), fits))
      return *given;
    throw bad_input(fmt::format("input '{}' has the shape [{}], and [{}] was given", input.name,
                                fmt::join(*input.shape, ","), fmt::join(*given, ",")));
  }
  if (!input.shape)
    throw bad_input(fmt::format("the rank of input '{}' is unknown", input.name), "give samples, or its --shape");
  auto shape = *input.shape;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] < 0) shape[axis] = free_dimension(*input.shape, axis, how);
  }
  return shape;
}

template <class T, class Value>
void fill(std::span<std::byte> bytes, Value value) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    const T element = value(i);
    std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
  }
}

std::uint32_t bits_at(std::size_t i) { return random_at(0, 0, i)[0]; }
double share_at(std::size_t i) { return static_cast<double>(bits_at(i)) / 4294967296.0; }

void fill_with_values(std::span<std::byte> bytes, onnx::DataType type, const MadeUp& how) {
  using onnx::DataType;
  const auto one = [](std::size_t) { return 1; };
  const auto zeros = how.begins_with_zeros ? bytes.size() / onnx::byte_count(type, 1).value_or(1) / 4 : 0;
  const auto value = [&](std::size_t i) { return i < zeros ? 0 : how.from + (how.to - how.from) * share_at(i); };
  const auto single = [&](std::size_t i) { return static_cast<float>(value(i)); };
  switch (type) {
    case DataType::float32: return fill<float>(bytes, single);
    case DataType::float64: return fill<double>(bytes, value);
    case DataType::float16: return fill<std::uint16_t>(bytes, [&](auto i) { return onnx::to_float16(single(i)); });
    case DataType::bfloat16: return fill<std::uint16_t>(bytes, [&](auto i) { return onnx::to_bfloat16(single(i)); });
    case DataType::uint8:
      return fill<std::uint8_t>(bytes, [](auto i) { return static_cast<std::uint8_t>(bits_at(i)); });
    case DataType::int16:
    case DataType::uint16: return fill<std::uint16_t>(bytes, [](auto) { return std::uint16_t{1}; });
    case DataType::int32:
    case DataType::uint32: return fill<std::int32_t>(bytes, one);
    case DataType::int64:
    case DataType::uint64: return fill<std::int64_t>(bytes, one);
    default: std::fill(bytes.begin(), bytes.end(), std::byte{1});
  }
}

}  // namespace

std::vector<Array> synthetic_inputs(std::span<const InputSpec> inputs,
                                    const std::map<std::string, std::vector<std::int64_t>>& shapes,
                                    std::span<const std::string> values, const MadeUp& how) {
  const auto numbers = parse_given_values(values);
  (void)without_given({inputs.begin(), inputs.end()}, numbers);
  std::vector<Array> arrays;
  for (const auto& input : inputs) {
    const auto given = shapes.find(input.name);
    const auto* number = number_of(numbers, input.name);
    if (number != nullptr && given == shapes.end()) {
      arrays.push_back(array_of(input, *number, 1));
      continue;
    }
    auto shape = shape_of(input, given == shapes.end() ? nullptr : &given->second, how);
    if (number != nullptr) {
      arrays.push_back(array_of({input.name, input.type, std::move(shape)}, *number, 1));
      continue;
    }
    const std::string where = fmt::format("input '{}'", input.name);
    const Buffer buffer = allocate(size_of(input.type, shape, where), where);
    fill_with_values(buffer.bytes, input.type, how);
    arrays.push_back({input.type, std::move(shape), buffer.bytes, buffer.memory});
  }
  return arrays;
}

}  // namespace detent::data
