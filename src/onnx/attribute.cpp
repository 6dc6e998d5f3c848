#include <fmt/format.h>

#include <protozero/pbf_message.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/error.h"
#include "onnx/model.h"

namespace detent::onnx {
namespace {

enum Field : protozero::pbf_tag_type {
  kName = 1,
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
  writer.add_string(kName, name.data(), name.size());
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
    if (number == kName && reader.wire_type() == pbf_wire_type::length_delimited) {
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

}  // namespace detent::onnx
