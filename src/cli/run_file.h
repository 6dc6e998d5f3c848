// A file of options that makes a run again: what --save-config writes, and --config reads.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "cli/options.h"

namespace detent::cli {

/// The options that a user gave, by their names: {"model": "/path/m.onnx", "output": …, "format": "q4"}. Paths are
/// absolute. What only concerns printing is left out.
nlohmann::json run_options(const std::vector<GivenOption>& given);

/// Writes it as YAML when commit() is called; without, nothing is written.
class RunFile {
 public:
  /// Throws usage where `path` cannot be written, or is that of another file that these options name.
  RunFile(const std::filesystem::path& path, const std::vector<GivenOption>& given);
  /// With the fingerprint of the model besides. Throws resource when the disk is full.
  void commit(nlohmann::json options, const std::filesystem::path& model);

 private:
  AtomicFile file_;
};

/// What tells a model, with its external data, from another one.
std::string fingerprint_of(const std::filesystem::path& model);

/// Throws bad_input when the model is not the one with this fingerprint.
void check_model(const std::filesystem::path& model, const std::string& fingerprint);

}  // namespace detent::cli
