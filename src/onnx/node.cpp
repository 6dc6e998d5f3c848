#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/error.h"
#include "onnx/model.h"

namespace detent::onnx {
namespace {

enum Field : protozero::pbf_tag_type { kInput = 1, kOutput = 2, kName = 3, kOpType = 4, kAttribute = 5, kDomain = 7 };

}  // namespace

Node::Node(const Wire& raw) : raw_(raw) {
  protozero::pbf_reader reader(raw.view().data(), raw.view().size());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    const bool delimited = reader.wire_type() == protozero::pbf_wire_type::length_delimited;
    if (delimited && number == kInput) {
      inputs_.push_back(reader.get_string());
    } else if (delimited && number == kOutput) {
      outputs_.push_back(reader.get_string());
    } else if (delimited && number == kName) {
      name_ = reader.get_string();
    } else if (delimited && number == kOpType) {
      op_type_ = reader.get_string();
    } else if (delimited && number == kDomain) {
      domain_ = reader.get_string();
    } else if (delimited && number == kAttribute) {
      const auto view = reader.get_view();
      attributes_.emplace_back(raw.part({view.data(), view.size()}));
    } else {
      reader.skip();
      const char* end = reader.data().data();
      other_.push_back({number, raw.part({begin, static_cast<std::size_t>(end - begin)})});
    }
    begin = reader.data().data();
  }
  if (domain_ == "ai.onnx") domain_.clear();
}

Node::Node(std::string op_type, std::string name, std::vector<std::string> inputs, std::vector<std::string> outputs,
           std::vector<Attribute> attributes, std::string domain)
    : op_type_(std::move(op_type)),
      name_(std::move(name)),
      domain_(std::move(domain)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      attributes_(std::move(attributes)) {}

const Attribute* Node::attribute(std::string_view name) const noexcept {
  const auto found =
      std::find_if(attributes_.begin(), attributes_.end(), [&](const Attribute& a) { return a.name() == name; });
  return found == attributes_.end() ? nullptr : &*found;
}

std::int64_t Node::int_or(std::string_view name, std::int64_t fallback) const {
  const Attribute* a = attribute(name);
  return a == nullptr ? fallback : a->as_int();
}

float Node::float_or(std::string_view name, float fallback) const {
  const Attribute* a = attribute(name);
  return a == nullptr ? fallback : a->as_float();
}

const std::string& Node::id() const noexcept {
  if (!name_.empty() || outputs_.empty()) return name_;
  return outputs_.front();
}

std::string Node::label() const {
  if (!name_.empty()) return fmt::format("{} '{}'", printable(op_type_), printable(name_));
  return fmt::format("{} (output '{}')", printable(op_type_), outputs_.empty() ? "" : printable(outputs_.front()));
}

void Node::set_input(std::size_t index, std::string name) {
  inputs_.at(index) = std::move(name);
  raw_ = {};
}
void Node::set_inputs(std::vector<std::string> names) {
  inputs_ = std::move(names);
  raw_ = {};
}
void Node::set_output(std::size_t index, std::string name) {
  outputs_.at(index) = std::move(name);
  raw_ = {};
}
void Node::set_name(std::string name) {
  name_ = std::move(name);
  raw_ = {};
}
void Node::set_op_type(std::string op_type) {
  op_type_ = std::move(op_type);
  raw_ = {};
}
void Node::remove_attribute(std::string_view name) {
  std::erase_if(attributes_, [&](const Attribute& a) { return a.name() == name; });
  raw_ = {};
}
void Node::set_attribute(Attribute attribute) {
  remove_attribute(attribute.name());
  attributes_.push_back(std::move(attribute));
}

Wire Node::encode() const {
  if (!raw_.empty()) return raw_;
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  for (const auto& name : inputs_) writer.add_string(kInput, name);
  for (const auto& name : outputs_) writer.add_string(kOutput, name);
  if (!name_.empty()) writer.add_string(kName, name_);
  writer.add_string(kOpType, op_type_);
  for (const auto& a : attributes_) writer.add_message(kAttribute, a.raw().view().data(), a.raw().view().size());
  if (!domain_.empty()) writer.add_string(kDomain, domain_);
  for (const auto& field : other_) bytes.append(field.wire.view());
  return Wire::own(std::move(bytes));
}

}  // namespace detent::onnx
