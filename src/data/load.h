// Reads one unit of a file set: the arrays of all inputs, each checked against its input before it is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/fit.h"
#include "data/layout.h"
#include "data/sample.h"

namespace detent::data {

struct LoadedArray {
  Array array;
  Fit fit = Fit::exact;
  std::string where;                       // the file, for messages
  std::shared_ptr<const MappedFile> file;  // set when the bytes lie in it
};

struct LoadedFile {
  std::string origin;
  std::vector<LoadedArray> inputs;  // in the order of the input specs
  std::uint32_t rate = 0;           // of sound, in frames a second; 0: no sound
};

/// Throws resource when a .npz or .wav file would take more than `memory` bytes (0: no limit).
LoadedFile load_file(const FileSet& files, std::size_t index, std::span<const InputSpec> inputs, std::uint64_t memory);

}  // namespace detent::data
