// Finds the files of a calibration directory and tells which of the known layouts they follow.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"

namespace detent::data {

enum class Layout {
  npz,        // root/NAME, keys are input names
  npy,        // root/NAME, one input
  per_input,  // root/<input>/NAME
  wav,        // root/NAME, one input
  test_sets,  // root/NAME/input_N.pb
};

/// The units of work in natural order: `names` are files, or folders of ONNX test data.
struct FileSet {
  Layout layout = Layout::npz;
  std::filesystem::path root;
  std::vector<std::string> names;
};

/// Throws bad_input as open_samples() does.
FileSet find_files(const std::filesystem::path& path, std::span<const InputSpec> inputs);

/// What a folder holds, from one pass over it: names of files and of folders; hidden ones are left out.
struct Listing {
  std::vector<std::string> files;
  std::vector<std::string> folders;
};
Listing list_folder(const std::filesystem::path& folder);

/// N of "input_N.pb".
std::optional<std::size_t> pb_index(std::string_view name) noexcept;

}  // namespace detent::data
