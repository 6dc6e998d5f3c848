#include "data/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/error.h"
#include "data/formats/text.h"

namespace detent::data {
namespace {

using Dims = std::span<const std::int64_t>;

bool dim_fits(std::int64_t expected, std::int64_t found) noexcept { return expected < 0 || expected == found; }

bool dims_fit(Dims expected, Dims found) noexcept {
  return std::equal(expected.begin(), expected.end(), found.begin(), found.end(), dim_fits);
}

bool npy_can_hold(onnx::DataType type) noexcept {
  constexpr std::array kTypes{onnx::DataType::boolean, onnx::DataType::int8,    onnx::DataType::int16,
                              onnx::DataType::int32,   onnx::DataType::int64,   onnx::DataType::uint8,
                              onnx::DataType::uint16,  onnx::DataType::uint32,  onnx::DataType::uint64,
                              onnx::DataType::float16, onnx::DataType::float32, onnx::DataType::float64};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

std::string hint_for(const InputSpec& input, onnx::DataType type, Dims found) {
  const std::string_view name = onnx::name_of(input.type);
  if (type != input.type) {
    const bool is_picture = type == onnx::DataType::uint8 && input.type == onnx::DataType::float32;
    if (is_picture)
      return "the model's input is float32: save what the application makes of the bytes before it runs the model, "
             "such as array.astype('float32') / 255, minus mean and divided by deviation";
    if (npy_can_hold(input.type)) return fmt::format("save it as {0}: array.astype('{0}')", name);
    return fmt::format(".npy and .npz cannot hold {}: use test_data_set_*/input_N.pb", name);
  }
  const Dims expected = *input.shape;
  if (expected.size() == 4 && found.size() == 4) {
    const std::array<std::int64_t, 4> channels_last{found[0], found[3], found[1], found[2]};
    if (dims_fit(expected, channels_last)) return "the channels are last: save array.transpose(0, 3, 1, 2)";
  }
  if (expected.size() == 4 && found.size() == 3) {
    const std::array<std::int64_t, 4> as_is{1, found[0], found[1], found[2]};
    const std::array<std::int64_t, 4> channels_last{1, found[2], found[0], found[1]};
    if (!dims_fit(expected, as_is) && dims_fit(expected, channels_last))
      return "the channels are last and there is no batch axis: save array.transpose(2, 0, 1)[None]";
  }
  if (found.size() + 1 == expected.size()) return "save it with a leading batch axis: array[None]";
  return fmt::format("save arrays of shape {}", describe_shape(expected));
}

}  // namespace

void throw_mismatch(const InputSpec& input, onnx::DataType type, const std::vector<std::int64_t>& shape,
                    const std::string& where) {
  throw bad_input(fmt::format("{}: input '{}' expects {}, found {}", where, printable(input.name, 120), describe(input),
                              describe(type, shape)),
                  hint_for(input, type, shape));
}

Fit fit_to_input(const InputSpec& input, onnx::DataType type, std::vector<std::int64_t>& shape,
                 const std::string& where) {
  if (type != input.type) throw_mismatch(input, type, shape, where);
  if (!input.shape) return Fit::exact;
  const Dims expected = *input.shape;
  if (dims_fit(expected, shape)) return Fit::exact;
  if (expected.empty()) throw_mismatch(input, type, shape, where);
  const Dims row = expected.subspan(1);
  if (shape.size() == row.size() && (expected[0] == 1 || expected[0] < 0) && dims_fit(row, shape)) {
    shape.insert(shape.begin(), 1);
    return Fit::exact;
  }
  if (shape.size() != expected.size() || !dims_fit(row, Dims(shape).subspan(1))) {
    throw_mismatch(input, type, shape, where);
  }
  return Fit::rows_differ;
}

}  // namespace detent::data
