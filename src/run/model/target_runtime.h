// Runtimes: the target that the loaded one stands for, and what a written file asks of those that load it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "detent/options.h"
#include "onnx/model.h"

namespace detent::run {

// `--target auto`: the target of the best execution provider that the ONNX Runtime that is loaded has.

/// The execution providers that have a target, best first, each with the target.
std::span<const std::pair<std::string_view, std::string_view>> targets_of_providers();

/// Puts the name in the place of "auto", and the reason among the notes; or in that of a file. Nothing after it, the
/// identity of the run included, sees that the name was not given. For "auto" it loads the runtime's library. Throws
/// device.
void name_target(Options& options);

/// Options with the name in the place of "auto" or of a file; nullopt where a name was given.
std::optional<Options> with_named_target(const Options& options);

// What a written file asks of the runtimes that load it, beyond what every supported version has.

/// The oldest version of ONNX Runtime that is known to load such operators, with their names; empty where that is the
/// oldest supported one. A note for users.
std::string needed_runtime(const onnx::Model& model);

/// What versions that know all operators must be told, a sentence each.
std::vector<std::string> loading_conditions(const onnx::Model& model);

}  // namespace detent::run
