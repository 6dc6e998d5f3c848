// Private to exec/: what the runtime says, made fit for users.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace detent::exec {

/// Its messages carry source paths and line breaks; users need one line.
std::string one_line(const std::string& text);

/// Why the runtime does not take a model, and what to do about it.
struct Refusal {
  std::string message, hint;
};
/// In plain words, where the model or an operator of it is newer than the runtime, or unknown to it; nothing for other
/// texts.
std::optional<Refusal> refusal_of(const std::string& text);

/// The newest opset of ONNX that the runtime knows, where the text of an error says that a model has a newer one.
std::optional<std::int64_t> known_opset(const std::string& text);
/// The operator that the runtime does not know, where the text of an error names one; else empty.
std::string unknown_operator(const std::string& text);

}  // namespace detent::exec
