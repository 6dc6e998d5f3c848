// Wording shared by the messages of this room: names made safe to print, shapes, inputs; and the order of file names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/printable.h"
#include "data/sample.h"

namespace detent::data {

/// The path in quotes.
std::string quoted(const std::filesystem::path& path);

/// "[1, 3, ?, ?]"; dynamic dimensions print as "?".
std::string describe_shape(std::span<const std::int64_t> shape);

/// "float32 [1, 3]".
std::string describe(onnx::DataType type, std::span<const std::int64_t> shape);

/// "float32 [?, 3]", or "float32 of any shape" when the rank is unknown.
std::string describe(const InputSpec& input);

/// "the model's inputs: 'x' float32 [?, 3], 'mask' bool [?]"; long lists are cut.
std::string describe_inputs(std::span<const InputSpec> inputs);

/// Orders names as people do: "img_2" before "img_10". A total order: equal only for equal texts.
bool natural_less(std::string_view a, std::string_view b) noexcept;

}  // namespace detent::data
