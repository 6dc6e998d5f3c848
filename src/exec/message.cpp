#include "exec/message.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/pattern.h"

namespace detent::exec {
namespace {

// What stands between two words; empty where they are not there.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const auto begin = text.find(before);
  if (begin == text.npos) return {};
  text.remove_prefix(begin + before.size());
  const auto end = text.find(after);
  return end == text.npos ? std::string_view() : text.substr(0, end);
}

constexpr std::string_view kKnowsUpTo = "this ONNX Runtime knows opsets up to ",
                           kHasNo = "this ONNX Runtime has no operator ";

}  // namespace

std::string one_line(const std::string& text) {
  static const Pattern kNoise(R"((/[^\s:]*\.(cc|h|cpp):\d+\s+[^\n]*?\)\s?)|[\r\n]+)");
  std::string line = kNoise.replace_all(text, " ");
  constexpr std::size_t kLongest = 400;
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "…";
  return line;
}

std::optional<Refusal> refusal_of(const std::string& text) {
  if (const auto version = between(text, "Unsupported model IR version: ", ","); !version.empty()) {
    const auto last = text.find_last_of("0123456789");
    const auto first = text.find_last_not_of("0123456789", last);
    return Refusal{fmt::format("it has IR version {}, and this ONNX Runtime knows versions up to {}", version,
                               text.substr(first + 1, last - first)),
                   "use a newer ONNX Runtime, or save the model with an older IR version"};
  }
  const auto opset = between(text, "Opset ", " is under development");
  const auto known = between(text, " is till opset ", ".");
  if (!opset.empty() && !known.empty())
    return Refusal{fmt::format("it has opset {} of {}, and {}{}", opset,
                               between(text, "support for domain ", " is till"), kKnowsUpTo, known),
                   "use a newer ONNX Runtime, or convert the model to an older opset"};
  constexpr std::string_view kFatal = "Fatal error: ";
  if (const auto name = between(text, kFatal, " is not a registered function/op"); !name.empty())
    return Refusal{fmt::format("{}{}", kHasNo, name.substr(0, name.rfind('('))),
                   "use an ONNX Runtime that has it, or a model without it"};
  if (const auto name = between(text, "No Op registered for ", " with domain_version"); !name.empty())
    return Refusal{fmt::format("{}{}", kHasNo, name), "use an ONNX Runtime that has it, or a model without it"};
  if (text.find("Subgraph must have the shape set for all outputs") != text.npos)
    return Refusal{fmt::format("what the body of Scan '{}' gives has shapes that are not known where values in it are "
                               "observed",
                               between(text, "Name:'", "'")),
                   "state the shapes of the body's outputs in the model, or give no samples"};
  const auto node = between(text, "Could not find an implementation for ", ")");
  if (const auto paren = node.find('('); paren != node.npos)
    return Refusal{fmt::format("this ONNX Runtime has no kernel of {} of opset {} for the types of node '{}'",
                               node.substr(0, paren), node.substr(paren + 1), between(text, "with name '", "'")),
                   "use an ONNX Runtime that has it, or change the types in the model"};
  return std::nullopt;
}

std::optional<std::int64_t> known_opset(const std::string& text) {
  const auto at = text.find(kKnowsUpTo);
  std::int64_t opset = 0;
  if (at == text.npos) return std::nullopt;
  const char* const begin = text.data() + at + kKnowsUpTo.size();
  const bool is_number = std::from_chars(begin, text.data() + text.size(), opset).ec == std::errc();
  return is_number ? std::optional(opset) : std::nullopt;
}

std::string unknown_operator(const std::string& text) {
  const auto at = text.find(kHasNo);
  return at == text.npos ? std::string() : text.substr(at + kHasNo.size());
}

}  // namespace detent::exec
