// Model-local functions as they are checked before anything else looks at them.
#pragma once

#include <cstdint>
#include <string>

namespace detent::onnx {

struct Model;

/// The domain of the operators that detent adds when it runs a model; a model that is read may have none of them.
inline constexpr const char* kPrivateDomain = "detent.exec";

/// More nodes than any real model has, once every call is replaced by the function's nodes.
inline constexpr std::uint64_t kMaxExpandedNodes = 1'000'000;

/// Throws bad_input for an operator in kPrivateDomain, in the graph, a body or a function; for a function that calls
/// itself, by whatever way, or others more than 100 deep; for calls that come to more than kMaxExpandedNodes nodes in
/// all; and for functions in the domains of the runtime's own operators or of detent's, whose place they would take:
/// both rely on what those operators take.
/// Gives back how many nodes the model has once every call is replaced by the function's nodes.
std::uint64_t check_functions(const Model& model, const std::string& where);

}  // namespace detent::onnx
