// Which execution providers a library of ONNX Runtime was built with.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace detent::exec {

struct Providers {
  std::vector<std::string> names;  // "OpenVINOExecutionProvider", …; the CPU's is the last
  std::string runtime;             // "ONNX Runtime 1.31.1"
};

/// Loads the library (shim::load_onnxruntime) and asks it; makes nothing that sessions would share. Throws device.
Providers available_providers(const std::optional<std::filesystem::path>& library);

}  // namespace detent::exec
