#include "onnx/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_message.hpp>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/error.h"

namespace detent::onnx {
namespace {

enum AttributeField : protozero::pbf_tag_type {
  kAttributeName = 1,
  kF = 2,
  kI = 3,
  kS = 4,
  kT = 5,
  kG = 6,
  kFloats = 7,
  kInts = 8,
  kStrings = 9,
  kTensors = 10,
  kGraphs = 11,
  kType = 20,
};

using protozero::pbf_wire_type;

// Calls fn(reader) for every field of the given number and wire type.
template <class Fn>
void each(const Wire& raw, protozero::pbf_tag_type number, pbf_wire_type type, Fn fn) {
  with_damage_as_bad_input("an attribute", [&] {
    protozero::pbf_reader reader(raw.view().data(), raw.view().size());
    while (reader.next()) {
      if (reader.tag() == number && reader.wire_type() == type) {
        fn(reader);
      } else {
        reader.skip();
      }
    }
  });
}

// Models of IR version 1 and 2 leave the type out; the populated field tells it.
Attribute::Kind kind_of_field(protozero::pbf_tag_type number) {
  return number >= kF && number <= kGraphs ? static_cast<Attribute::Kind>(number - 1) : Attribute::Kind::undefined;
}

template <class Fill>
Attribute build(std::string_view name, Attribute::Kind kind, Fill fill) {
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  writer.add_string(kAttributeName, name.data(), name.size());
  fill(writer);
  writer.add_enum(kType, static_cast<std::int32_t>(kind));
  return Attribute(Wire::own(std::move(bytes)));
}

}  // namespace

Attribute::Attribute(Wire raw) : raw_(std::move(raw)) {
  protozero::pbf_reader reader(raw_.view().data(), raw_.view().size());
  Kind guessed = Kind::undefined;
  while (reader.next()) {
    const auto number = reader.tag();
    if (number == kAttributeName && reader.wire_type() == pbf_wire_type::length_delimited) {
      name_ = reader.get_string();
    } else if (number == kType && reader.wire_type() == pbf_wire_type::varint) {
      kind_ = static_cast<Kind>(reader.get_int32());
    } else {
      if (kind_of_field(number) != Kind::undefined) guessed = kind_of_field(number);
      reader.skip();
    }
  }
  if (kind_ == Kind::undefined) kind_ = guessed;
}

Attribute Attribute::of_int(std::string_view name, std::int64_t value) {
  return build(name, Kind::i, [&](auto& w) { w.add_int64(kI, value); });
}
Attribute Attribute::of_float(std::string_view name, float value) {
  return build(name, Kind::f, [&](auto& w) { w.add_float(kF, value); });
}
Attribute Attribute::of_string(std::string_view name, std::string_view value) {
  return build(name, Kind::s, [&](auto& w) { w.add_bytes(kS, value.data(), value.size()); });
}
Attribute Attribute::of_ints(std::string_view name, const std::vector<std::int64_t>& values) {
  return build(name, Kind::ints, [&](auto& w) {
    for (const auto v : values) w.add_int64(kInts, v);
  });
}

Attribute Attribute::of_messages(std::string_view name, Kind kind, const std::vector<std::string>& messages) {
  const auto field = static_cast<protozero::pbf_tag_type>(kind) + 1;
  return build(name, kind, [&](auto& w) {
    for (const auto& message : messages) w.add_message(field, message);
  });
}

std::int64_t Attribute::as_int() const {
  if (kind_ != Kind::i) throw bad_input(fmt::format("attribute '{}' is not an integer", name_));
  std::int64_t value = 0;
  each(raw_, kI, pbf_wire_type::varint, [&](auto& r) { value = r.get_int64(); });
  return value;
}

float Attribute::as_float() const {
  if (kind_ != Kind::f) throw bad_input(fmt::format("attribute '{}' is not a float", name_));
  float value = 0;
  each(raw_, kF, pbf_wire_type::fixed32, [&](auto& r) { value = r.get_float(); });
  return value;
}

std::string Attribute::as_string() const {
  if (kind_ != Kind::s) throw bad_input(fmt::format("attribute '{}' is not a string", name_));
  std::string value;
  each(raw_, kS, pbf_wire_type::length_delimited, [&](auto& r) { value = r.get_string(); });
  return value;
}

std::vector<std::int64_t> Attribute::as_ints() const {
  if (kind_ != Kind::ints) throw bad_input(fmt::format("attribute '{}' is not a list of integers", name_));
  std::vector<std::int64_t> values;
  each(raw_, kInts, pbf_wire_type::varint, [&](auto& r) { values.push_back(r.get_int64()); });
  each(raw_, kInts, pbf_wire_type::length_delimited, [&](auto& r) {
    for (const auto v : r.get_packed_int64()) values.push_back(v);
  });
  return values;
}

std::vector<float> Attribute::as_floats() const {
  if (kind_ != Kind::floats) throw bad_input(fmt::format("attribute '{}' is not a list of floats", name_));
  std::vector<float> values;
  each(raw_, kFloats, pbf_wire_type::fixed32, [&](auto& r) { values.push_back(r.get_float()); });
  each(raw_, kFloats, pbf_wire_type::length_delimited, [&](auto& r) {
    for (const auto v : r.get_packed_float()) values.push_back(v);
  });
  return values;
}

Wire Attribute::as_tensor() const {
  if (kind_ != Kind::t) throw bad_input(fmt::format("attribute '{}' is not a tensor", name_));
  Wire tensor;
  each(raw_, kT, pbf_wire_type::length_delimited, [&](auto& r) {
    const auto view = r.get_view();
    tensor = raw_.part({view.data(), view.size()});
  });
  return tensor;
}

std::vector<Wire> Attribute::as_graphs() const {
  std::vector<Wire> graphs;
  for (const auto number : {kG, kGraphs}) {
    each(raw_, number, pbf_wire_type::length_delimited, [&](auto& r) {
      const auto view = r.get_view();
      graphs.push_back(raw_.part({view.data(), view.size()}));
    });
  }
  return graphs;
}

namespace {

enum NodeField : protozero::pbf_tag_type {
  kInput = 1,
  kOutput = 2,
  kNodeName = 3,
  kOpType = 4,
  kAttribute = 5,
  kDomain = 7
};

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
    } else if (delimited && number == kNodeName) {
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
  if (!name_.empty()) writer.add_string(kNodeName, name_);
  writer.add_string(kOpType, op_type_);
  for (const auto& a : attributes_) writer.add_message(kAttribute, a.raw().view().data(), a.raw().view().size());
  if (!domain_.empty()) writer.add_string(kDomain, domain_);
  for (const auto& field : other_) bytes.append(field.wire.view());
  return Wire::own(std::move(bytes));
}

}  // namespace detent::onnx
