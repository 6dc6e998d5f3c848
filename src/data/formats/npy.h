// The .npy format (numpy.lib.format, versions 1.0 to 3.0): a short text header, then the array's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"

namespace detent::data {

struct NpyHeader {
  onnx::DataType type = onnx::DataType::undefined;
  std::vector<std::int64_t> shape;
  bool fortran_order = false;
  std::size_t data_offset = 0;   // from the file's start
  std::uint64_t data_bytes = 0;  // data_offset + data_bytes is exactly the file's size
};

/// As many leading bytes of a file as tell where its header ends.
inline constexpr std::size_t kNpyPrefix = 12;

/// Where the header ends and the data begins, from the first kNpyPrefix bytes (fewer when the file is shorter).
std::size_t npy_header_end(std::span<const std::byte> prefix, std::uint64_t file_size, const std::string& where);

/// Parses the header at the front of `start`, which must reach at least to npy_header_end(), and holds the sizes it
/// declares against `file_size`. `where` names the file in messages.
NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_size, const std::string& where);

/// The array behind a checked header; `data` are the bytes from data_offset on. They stay where they are unless they
/// are in column order or misaligned.
Array npy_array(const NpyHeader& header, std::span<const std::byte> data, std::shared_ptr<const void> owner,
                const std::string& where);

}  // namespace detent::data
