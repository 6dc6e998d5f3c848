// Memory that arrays own when they cannot stay views of a mapped file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/sample.h"

namespace detent::data {

/// Uninitialised bytes, aligned for every element type.
struct Buffer {
  std::shared_ptr<std::byte[]> memory;
  std::span<std::byte> bytes;
};

/// Throws resource, naming `where` the data came from, when there is no memory for it.
Buffer allocate(std::uint64_t size, const std::string& where);

/// The array itself when its bytes are aligned for its element type, else one with a copy of them.
Array aligned(Array array, const std::string& where);

/// Bytes of an array of this type and shape; throws bad_input when they cannot be counted in 63 bits.
std::uint64_t size_of(onnx::DataType type, std::span<const std::int64_t> shape, const std::string& where);

}  // namespace detent::data
