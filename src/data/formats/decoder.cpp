#include "data/formats/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "data/buffer.h"
#include "data/formats/npz.h"
#include "data/formats/text.h"
#include "data/layout.h"

namespace detent::data {
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
void fill(std::span<std::byte> bytes, std::int64_t length, std::string_view name) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
    const T value = name == kPositions ? static_cast<T>(static_cast<std::int64_t>(i) % length) : T{name != kTypes};
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
}

std::vector<std::int64_t> shape_of(const InputSpec& input, std::int64_t rows, std::int64_t length) {
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

}  // namespace

bool is_decoder(const std::vector<InputSpec>& inputs) {
  const auto any = [&](const auto& holds) { return std::any_of(inputs.begin(), inputs.end(), holds); };
  return any([](const auto& input) { return input.name == kTokenIds; }) &&
         any([](const auto& input) { return input.name.starts_with(kCache); });
}

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

LoadedArray from_ids(const InputSpec& input, const LoadedArray& ids) {
  if (ids.array.shape.size() != 2)
    throw bad_input(
        fmt::format("{}: '{}' is {}, not [row, position]", ids.where, kTokenIds, describe_shape(ids.array.shape)),
        "give all inputs in the calibration data");
  const std::int64_t rows = ids.array.shape[0], length = ids.array.shape[1];
  LoadedArray made;
  made.where = ids.where;
  made.array.type = input.type;
  made.array.shape = shape_of(input, rows, length);
  const auto buffer = allocate(size_of(input.type, made.array.shape, ids.where), ids.where);
  switch (input.type) {
    case onnx::DataType::int64: fill<std::int64_t>(buffer.bytes, length, input.name); break;
    case onnx::DataType::int32: fill<std::int32_t>(buffer.bytes, length, input.name); break;
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

}  // namespace detent::data
