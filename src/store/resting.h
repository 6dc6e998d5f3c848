// Where a record rests on disk, for those who read it by other ways than Spool::get().
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "onnx/types.h"

namespace detent::store {

/// The payload of a record: whole blocks (kBlock) of a file, with the arrays at places of it. Good until the record is
/// released or put again.
struct RecordOnDisk {
  struct Part {
    onnx::DataType type = onnx::DataType::undefined;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // from the payload's
    std::uint64_t size = 0;
    bool narrowed = false;  // float32, kept as bfloat16
  };

  std::filesystem::path file;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // XXH3-64 of the payload
  std::vector<Part> parts;
};

}  // namespace detent::store
