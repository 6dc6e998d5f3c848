#include "data/given_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "data/buffer.h"
#include "data/formats/text.h"
#include "onnx/half.h"

namespace detent::data {
namespace {

Error wrong_number(const InputSpec& input, const std::string& number) {
  return usage_error(fmt::format("--input: the input '{}' is {}, of which '{}' is no value", printable(input.name, 120),
                                 describe(input), printable(number, 60)),
                     "give one number of its type; a bool is 0 or 1");
}

template <class T>
T parsed(const InputSpec& input, const std::string& number) {
  T value{};
  const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (status != std::errc() || end != number.data() + number.size()) throw wrong_number(input, number);
  return value;
}

template <class T>
std::vector<std::byte> bytes_of(T value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// One element of the input's type.
std::vector<std::byte> element(const InputSpec& input, const std::string& number) {
  using onnx::DataType;
  switch (input.type) {
    case DataType::float32: return bytes_of(parsed<float>(input, number));
    case DataType::float64: return bytes_of(parsed<double>(input, number));
    case DataType::float16: return bytes_of(onnx::to_float16(parsed<float>(input, number)));
    case DataType::bfloat16: return bytes_of(onnx::to_bfloat16(parsed<float>(input, number)));
    case DataType::int8: return bytes_of(parsed<std::int8_t>(input, number));
    case DataType::uint8: return bytes_of(parsed<std::uint8_t>(input, number));
    case DataType::int16: return bytes_of(parsed<std::int16_t>(input, number));
    case DataType::uint16: return bytes_of(parsed<std::uint16_t>(input, number));
    case DataType::int32: return bytes_of(parsed<std::int32_t>(input, number));
    case DataType::uint32: return bytes_of(parsed<std::uint32_t>(input, number));
    case DataType::int64: return bytes_of(parsed<std::int64_t>(input, number));
    case DataType::uint64: return bytes_of(parsed<std::uint64_t>(input, number));
    case DataType::boolean:
      if (const auto value = parsed<std::uint8_t>(input, number); value <= 1) return bytes_of(value);
      [[fallthrough]];
    default: throw wrong_number(input, number);
  }
}

class CompletedSource final : public SampleSource {
 public:
  CompletedSource(std::vector<InputSpec> inputs, GivenValues values, std::unique_ptr<SampleSource> inner)
      : inputs_(std::move(inputs)), values_(std::move(values)), inner_(std::move(inner)) {}

  std::optional<Sample> next() override {
    auto sample = next_held();
    if (!sample) return std::nullopt;
    const auto with_rows = std::find_if(sample->inputs.begin(), sample->inputs.end(),
                                        [](const Array& array) { return !array.shape.empty(); });
    const std::int64_t rows = with_rows == sample->inputs.end() ? 1 : with_rows->shape.front();
    std::vector<Array> whole;
    auto held = sample->inputs.begin();
    for (const auto& input : inputs_) {
      const auto* number = number_of(values_, input.name);
      whole.push_back(number != nullptr ? array_of(input, *number, rows) : std::move(*held++));
    }
    sample->inputs = std::move(whole);
    return sample;
  }
  void rewind() override { inner_->rewind(); }
  void skip(std::size_t count) override { inner_->skip(count); }
  std::size_t sample_count() const override { return inner_->sample_count(); }
  std::vector<std::string> notes() const override { return inner_->notes(); }

 private:
  // Messages list the inputs that the samples have to hold.
  std::optional<Sample> next_held() {
    try {
      return inner_->next();
    } catch (const Error& error) {
      std::string given;
      for (const auto& [name, number] : values_) given += fmt::format("{}'{}'", given.empty() ? "" : ", ", name);
      if (error.kind() != ErrorKind::bad_input) throw;
      throw bad_input(error.what(), fmt::format("{}{}by --input: {}", error.hint(), error.hint().empty() ? "" : "; ",
                                                printable(given, 400)));
    }
  }

  std::vector<InputSpec> inputs_;
  GivenValues values_;
  std::unique_ptr<SampleSource> inner_;
};

}  // namespace

const std::string* number_of(const GivenValues& values, const std::string& name) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return found == values.end() ? nullptr : &found->second;
}

GivenValues parse_given_values(std::span<const std::string> entries) {
  GivenValues values;
  for (const auto& entry : entries) {
    const auto equals = entry.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == entry.size())
      throw usage_error(fmt::format("--input: '{}' is not an input with its number", printable(entry, 120)),
                        "give NAME=NUMBER, as in --input sr=16000");
    auto name = entry.substr(0, equals);
    if (number_of(values, name) != nullptr)
      throw usage_error(fmt::format("--input: '{}' is given twice", printable(name, 120)), "leave out one of them");
    values.emplace_back(std::move(name), entry.substr(equals + 1));
  }
  return values;
}

std::vector<InputSpec> without_given(const std::vector<InputSpec>& inputs, const GivenValues& values) {
  for (const auto& [name, number] : values) {
    const auto input = std::find_if(inputs.begin(), inputs.end(), [&](const auto& i) { return i.name == name; });
    if (input == inputs.end())
      throw usage_error(fmt::format("--input: the model has no input '{}'", printable(name, 120)),
                        describe_inputs(inputs));
    (void)element(*input, number);
  }
  std::vector<InputSpec> left;
  for (const auto& input : inputs) {
    if (number_of(values, input.name) == nullptr) left.push_back(input);
  }
  if (left.empty() && !inputs.empty())
    throw usage_error("--input gives all inputs of the model, and leaves none for samples", describe_inputs(inputs));
  return left;
}

Array array_of(const InputSpec& input, const std::string& number, std::int64_t rows) {
  if (!input.shape || std::count_if(input.shape->begin(), input.shape->end(), [](auto d) { return d < 0; }) > 1)
    throw usage_error(fmt::format("--input: the input '{}' is {}: how large it is does not follow from a sample",
                                  printable(input.name, 120), describe(input)),
                      "save it as an array in each sample");
  const auto one = element(input, number);
  Array array{input.type, *input.shape, {}, nullptr};
  for (auto& dim : array.shape) dim = dim < 0 ? rows : dim;
  const auto where = fmt::format("--input '{}'", printable(input.name, 120));
  const Buffer buffer = allocate(size_of(array.type, array.shape, where), where);
  for (std::size_t at = 0; at < buffer.bytes.size(); at += one.size())
    std::copy(one.begin(), one.end(), buffer.bytes.begin() + static_cast<std::ptrdiff_t>(at));
  array.bytes = buffer.bytes;
  array.owner = buffer.memory;
  return array;
}

std::unique_ptr<SampleSource> with_given(
    std::vector<InputSpec> inputs, std::span<const std::string> entries,
    const std::function<std::unique_ptr<SampleSource>(std::vector<InputSpec>)>& open) {
  if (entries.empty()) return open(std::move(inputs));
  auto values = parse_given_values(entries);
  auto inner = open(without_given(inputs, values));
  return std::make_unique<CompletedSource>(std::move(inputs), std::move(values), std::move(inner));
}

}  // namespace detent::data
