// Private to exec/: which execution provider of ONNX Runtime a session runs on.
#pragma once

#include <string>

#include "base/error.h"
#include "exec/ort.h"
#include "shim/device.h"

namespace detent::exec {

/// Puts the device's provider before the CPU's. Throws device when the runtime was built without it or cannot load it;
/// `library` names the runtime in the message.
void append_provider(Ort::SessionOptions& options, const shim::Device& device, const std::string& library);

/// The same of a provider by its name, with its defaults.
void append_provider(Ort::SessionOptions& options, const std::string& name, const std::string& library);

/// Whether an error of the runtime is one of the device, and not of the model or its inputs.
bool is_device_failure(const std::string& text);

}  // namespace detent::exec
