#include "data/given_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/numbers.h"
#include "base/paths.h"
#include "data/layout.h"
#include "data/numpy.h"
#include "onnx/packed_numbers.h"

namespace detent::data {
namespace {

Error wrong_number(const InputSpec& input, const std::string& number) {
  return usage_error(fmt::format("--input: the input '{}' is {}, and '{}' is no value of it",
                                 printable(input.name, 120), describe(input), printable(number, 60)),
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
    throw usage_error(fmt::format("--input: the input '{}' is {}: its size does not follow from a sample",
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

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCache = "past_key_values.";
constexpr std::string_view kMask = "attention_mask";
constexpr std::string_view kPositions = "position_ids";
constexpr std::string_view kCacheBranch = "use_cache_branch";  // of optimum's merged decoders
constexpr std::string_view kTypes = "token_type_ids";          // of encoders: which of two texts a token is of

bool holds(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> keys_of(const fs::path& npz) {
  auto keys = NpzFile::open(npz).keys();
  if (keys.size() == 1 && keys.front() == "arr_0") keys.front() = kTokenIds;
  return keys;
}

// The names of the arrays in the data, as far as the layout tells. Nullopt where it names none.
std::optional<std::vector<std::string>> names_in(const fs::path& path) {
  if (!paths::is_folder(path)) {
    if (path.extension() == ".npz" && paths::exists(path)) return keys_of(path);
    if (path.extension() == ".npy") return std::vector<std::string>{std::string(kTokenIds)};
    return std::nullopt;
  }
  const Listing listing = list_folder(path);
  const auto file = [&](std::string_view extension) {
    return std::find_if(listing.files.begin(), listing.files.end(),
                        [&](const auto& name) { return name.ends_with(extension); });
  };
  if (const auto npz = file(".npz"); npz != listing.files.end()) return keys_of(path / *npz);
  if (file(".npy") != listing.files.end()) return std::vector<std::string>{std::string(kTokenIds)};
  if (holds(listing.folders, kTokenIds)) return listing.folders;
  return std::nullopt;
}

// Positions 0, 1, … in every row, zeros or ones, as the input of this name has them.
template <class T>
void fill_token_input(std::span<std::byte> bytes, std::int64_t length, std::string_view name) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    const T value = name == kPositions ? static_cast<T>(static_cast<std::int64_t>(i) % length) : T{name != kTypes};
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
}

std::vector<std::int64_t> token_input_shape(const InputSpec& input, std::int64_t rows, std::int64_t length) {
  if (input.name == kCacheBranch) return {1};
  if (!input.name.starts_with(kCache)) return {rows, length};
  auto shape = input.shape.value_or(std::vector<std::int64_t>());
  if (!shape.empty() && shape.front() < 0) shape.front() = rows;
  if (std::count_if(shape.begin(), shape.end(), [](auto dim) { return dim < 0; }) != 1) {
    throw bad_input(fmt::format("the length of the cache cannot be told from the shape of input '{}', {}",
                                printable(input.name, 120), describe(input)),
                    "give all inputs in the calibration data");
  }
  *std::find_if(shape.begin(), shape.end(), [](auto dim) { return dim < 0; }) = 0;
  return shape;
}

// For token ids [row, position]. The cache's second dynamic axis has length 0.
LoadedArray from_ids(const InputSpec& input, const LoadedArray& ids) {
  if (ids.array.shape.size() != 2)
    throw bad_input(
        fmt::format("{}: '{}' is {}, not [row, position]", ids.where, kTokenIds, describe_shape(ids.array.shape)),
        "give all inputs in the calibration data");
  const std::int64_t rows = ids.array.shape[0], length = ids.array.shape[1];
  LoadedArray made;
  made.where = ids.where;
  made.array.type = input.type;
  made.array.shape = token_input_shape(input, rows, length);
  const auto buffer = allocate(size_of(input.type, made.array.shape, ids.where), ids.where);
  switch (input.type) {
    case onnx::DataType::int64: fill_token_input<std::int64_t>(buffer.bytes, length, input.name); break;
    case onnx::DataType::int32: fill_token_input<std::int32_t>(buffer.bytes, length, input.name); break;
    default:  // an empty cache, which is not used
      if (input.name == kMask || input.name == kPositions || input.name == kTypes)
        throw bad_input(
            fmt::format("input '{}' is {}, which does not follow from token ids", input.name, describe(input)),
            "give all inputs in the calibration data");
      std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{0});
  }
  made.array.bytes = buffer.bytes;
  made.array.owner = buffer.memory;
  made.fit = fit_to_input(input, input.type, made.array.shape, ids.where);
  return made;
}

// Whether all that a model with these inputs reads follows from token ids: a decoder, or an encoder.
bool reads_tokens(const std::vector<InputSpec>& inputs) {
  if (is_decoder(inputs)) return true;
  bool ids = false;
  for (const auto& input : inputs) {
    if (input.name == kTokenIds)
      ids = true;
    else if (input.name != kMask && input.name != kPositions && input.name != kTypes)
      return false;
  }
  return ids;
}

}  // namespace

bool is_decoder(const std::vector<InputSpec>& inputs) {
  const auto any = [&](const auto& holds) { return std::any_of(inputs.begin(), inputs.end(), holds); };
  return any([](const auto& input) { return input.name == kTokenIds; }) &&
         any([](const auto& input) { return input.name.starts_with(kCache); });
}

std::string name_of_unnamed_array(const std::vector<InputSpec>& inputs) {
  if (inputs.size() == 1) return inputs.front().name;
  return reads_tokens(inputs) ? std::string(kTokenIds) : std::string();
}

bool follows_from_ids(const InputSpec& input, const std::vector<InputSpec>& inputs,
                      const std::vector<std::string>& given) {
  if (holds(given, input.name) || !holds(given, kTokenIds) || !reads_tokens(inputs)) return false;
  if (input.name == kPositions) return !holds(given, kMask);
  return input.name == kMask || input.name == kTypes || input.name == kCacheBranch || input.name.starts_with(kCache);
}

std::vector<InputSpec> inputs_given(const fs::path& path, const std::vector<InputSpec>& inputs) {
  if (!reads_tokens(inputs)) return inputs;
  const auto names = names_in(path);
  if (!names) return inputs;
  std::vector<InputSpec> given;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(given),
               [&](const auto& input) { return !follows_from_ids(input, inputs, *names); });
  return given;
}

LoadedFile with_token_inputs(LoadedFile unit, const std::vector<InputSpec>& given,
                             const std::vector<InputSpec>& inputs) {
  if (given.size() == inputs.size()) return unit;
  const auto place = [&](std::string_view name) {
    const auto found = std::find_if(given.begin(), given.end(), [&](const auto& input) { return input.name == name; });
    return static_cast<std::size_t>(found - given.begin());
  };
  const LoadedArray ids = unit.inputs[place(kTokenIds)];
  LoadedFile whole{std::move(unit.origin), {}};
  for (const auto& input : inputs) {
    const std::size_t at = place(input.name);
    whole.inputs.push_back(at < given.size() ? std::move(unit.inputs[at]) : from_ids(input, ids));
  }
  return whole;
}

namespace {

constexpr std::int64_t kChannels = 3;
constexpr std::size_t kPictureRank = 4;

std::int64_t free_dimension(const std::vector<std::int64_t>& declared, std::size_t axis, const MadeUp& how) {
  if (axis == 0) return 1;
  if (declared.size() < kPictureRank) return how.steps;
  const bool channels_known = declared[1] >= 0 || declared.back() >= 0;
  return axis == 1 && !channels_known ? kChannels : how.pixels;
}

std::vector<std::int64_t> synthetic_shape(const InputSpec& input, const std::vector<std::int64_t>* given,
                                          const MadeUp& how) {
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

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

// How long a decoder's cache is, and the ids that follow it: as declared, given, or made up.
struct DecoderLengths {
  std::int64_t rows = 1, cached = 0, steps = 0;
};

DecoderLengths decoder_lengths(std::span<const InputSpec> inputs, const Shapes& given, const MadeUp& how) {
  DecoderLengths lengths{.cached = how.cached, .steps = how.steps};
  const auto take = [](std::int64_t& length, const std::vector<std::int64_t>& dims, std::size_t axis) {
    if (axis < dims.size() && dims[axis] >= 0) length = dims[axis];
  };
  for (const auto& input : inputs) {
    const auto found = given.find(input.name);
    const auto dims = found != given.end() ? found->second : input.shape.value_or(std::vector<std::int64_t>());
    if (input.name == kTokenIds) {
      take(lengths.rows, dims, 0);
      take(lengths.steps, dims, 1);
    } else if (input.name.starts_with(kCache) && dims.size() > 2) {
      take(lengths.cached, dims, dims.size() - 2);
    }
  }
  return lengths;
}

// The given shapes, and those of what a decoder reads beside its ids.
Shapes with_decoder_shapes(std::span<const InputSpec> inputs, Shapes shapes, const DecoderLengths& lengths) {
  for (const auto& input : inputs) {
    const bool is_cache = input.name.starts_with(kCache), is_mask = input.name == kMask;
    if (!input.shape || input.name == kCacheBranch) continue;
    if (!is_cache && !is_mask && input.name != kTokenIds && input.name != kPositions && input.name != kTypes) continue;
    auto shape = *input.shape;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      const auto later = (is_cache || is_mask ? lengths.cached : 0) + (is_cache ? 0 : lengths.steps);
      if (shape[axis] < 0) shape[axis] = axis == 0 ? lengths.rows : later;
    }
    shapes.try_emplace(input.name, std::move(shape));
  }
  return shapes;
}

template <class T, class Value>
void fill_synthetic(std::span<std::byte> bytes, Value value) {
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
    case DataType::float32: return fill_synthetic<float>(bytes, single);
    case DataType::float64: return fill_synthetic<double>(bytes, value);
    case DataType::float16:
      return fill_synthetic<std::uint16_t>(bytes, [&](auto i) { return onnx::to_float16(single(i)); });
    case DataType::bfloat16:
      return fill_synthetic<std::uint16_t>(bytes, [&](auto i) { return onnx::to_bfloat16(single(i)); });
    case DataType::uint8:
      return fill_synthetic<std::uint8_t>(bytes, [](auto i) { return static_cast<std::uint8_t>(bits_at(i)); });
    case DataType::int16:
    case DataType::uint16: return fill_synthetic<std::uint16_t>(bytes, [](auto) { return std::uint16_t{1}; });
    case DataType::int32:
    case DataType::uint32: return fill_synthetic<std::int32_t>(bytes, one);
    case DataType::int64:
    case DataType::uint64: return fill_synthetic<std::int64_t>(bytes, one);
    default: std::fill(bytes.begin(), bytes.end(), std::byte{1});
  }
}

}  // namespace

std::vector<Array> synthetic_inputs(std::span<const InputSpec> inputs, const Shapes& given_shapes,
                                    std::span<const std::string> values, const MadeUp& how) {
  const auto numbers = parse_given_values(values);
  (void)without_given({inputs.begin(), inputs.end()}, numbers);
  const bool of_decoder = is_decoder({inputs.begin(), inputs.end()});
  const auto lengths = decoder_lengths(inputs, given_shapes, how);
  const auto shapes = of_decoder ? with_decoder_shapes(inputs, given_shapes, lengths) : given_shapes;
  std::vector<Array> arrays;
  for (const auto& input : inputs) {
    const auto given = shapes.find(input.name);
    const auto* number = number_of(numbers, input.name);
    if (number != nullptr && !given_shapes.contains(input.name)) {
      arrays.push_back(array_of(input, *number, 1));
      continue;
    }
    auto shape = synthetic_shape(input, given == shapes.end() ? nullptr : &given->second, how);
    if (number != nullptr) {
      arrays.push_back(array_of({input.name, input.type, std::move(shape)}, *number, 1));
      continue;
    }
    const std::string where = fmt::format("input '{}'", input.name);
    const Buffer buffer = allocate(size_of(input.type, shape, where), where);
    const auto position = [&](std::size_t i) {
      return lengths.cached + static_cast<std::int64_t>(i) % std::max<std::int64_t>(lengths.steps, 1);
    };
    if (of_decoder && input.name == kPositions && input.type == onnx::DataType::int64)
      fill_synthetic<std::int64_t>(buffer.bytes, position);
    else if (of_decoder && input.name == kCacheBranch)
      std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{lengths.cached > 0});
    else
      fill_with_values(buffer.bytes, input.type, how);
    arrays.push_back({input.type, std::move(shape), buffer.bytes, buffer.memory});
  }
  return arrays;
}

}  // namespace detent::data
