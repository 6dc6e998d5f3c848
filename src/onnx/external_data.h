// A tensor's external data: where it lies, and opening it within the model's boundary. Answers CVE-2022-25882,
// CVE-2024-27318, CVE-2026-27489, -34445, -34446 and -34447 (SECURITY.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/boundary.h"

namespace detent::onnx {

/// The external_data entries of a TensorProto.
struct ExternalRef {
  std::string location;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> length;
};

/// Parses the key/value entries; only the keys of the ONNX specification are accepted, numbers must be whole and >= 0.
ExternalRef parse_external(const std::vector<std::pair<std::string, std::string>>& entries, const std::string& where);

/// Opens external data files, each once however many tensors lie in it.
class ExternalFiles {
 public:
  explicit ExternalFiles(const std::filesystem::path& model_path) : boundary_(model_path.parent_path(), model_path) {}
  std::shared_ptr<const MappedFile> open(const std::string& location, const std::string& where);

 private:
  Boundary boundary_;
  std::unordered_map<std::string, std::shared_ptr<const MappedFile>> files_;  // by location
};

}  // namespace detent::onnx
