// `--target auto`: the target of the best execution provider that the ONNX Runtime that is loaded has.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "config/targets.h"
#include "detent/calibrate.h"
#include "detent/quantize.h"

namespace detent::run {

/// The execution providers that have a target, best first, each with the target.
std::span<const std::pair<std::string_view, std::string_view>> targets_of_providers();

struct NamedTarget {
  std::string name, reason;
};
/// Loads the library. Throws device.
NamedTarget automatic_target(const std::optional<std::filesystem::path>& runtime);

/// Puts the name in the place of "auto", and the reason beside it. Nothing after it, the identity of the run included,
/// sees that the name was not given.
template <class Options>
void name_target(Options& options) {
  if (options.config.target != config::kAutomaticTarget) return;
  auto named = automatic_target(options.runtime);
  options.config.target = std::move(named.name);
  options.config.target_reason = std::move(named.reason);
}

/// Options with the name in the place of "auto"; nullopt where a name was given.
template <class Options>
std::optional<Options> with_named_target(const Options& options) {
  if (options.config.target != config::kAutomaticTarget) return std::nullopt;
  std::optional<Options> named(options);
  name_target(*named);
  return named;
}

}  // namespace detent::run
