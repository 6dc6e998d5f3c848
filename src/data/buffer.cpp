#include "data/buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>

#include "base/bytes.h"
#include "base/error.h"
#include "data/formats/text.h"

namespace detent::data {

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

}  // namespace detent::data
