#include "onnx/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/error.h"

namespace detent::onnx {

Wire Wire::own(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const std::string_view view = *owner;
  return {view, std::move(owner)};
}

std::string damage(const protozero::exception& cause) {
  const bool is_cut = dynamic_cast<const protozero::end_of_buffer_exception*>(&cause) != nullptr;
  return is_cut ? "it ends inside a field" : "it holds bytes that are no field";
}

void throw_damaged(const std::string& where, const protozero::exception& cause) {
  throw bad_input(fmt::format("{} is truncated or not an ONNX file: {}", where, damage(cause)),
                  "check that it was copied whole; detent reads .onnx files");
}

std::string_view payload_of(const RawField& field) {
  protozero::pbf_reader reader(field.wire.view().data(), field.wire.view().size());
  if (!reader.next() || reader.wire_type() != protozero::pbf_wire_type::length_delimited) return {};
  const auto view = reader.get_view();
  return {view.data(), view.size()};
}

RawField string_field(std::uint32_t number, std::string_view value) {
  std::string bytes;
  protozero::pbf_writer(bytes).add_string(number, value.data(), value.size());
  return {number, Wire::own(std::move(bytes))};
}

RawField varint_field(std::uint32_t number, std::int64_t value) {
  std::string bytes;
  protozero::pbf_writer(bytes).add_int64(number, value);
  return {number, Wire::own(std::move(bytes))};
}

void set_field(std::vector<RawField>& fields, const RawField& field) {
  std::erase_if(fields, [&](const RawField& f) { return f.number == field.number; });
  fields.push_back(field);
}

}  // namespace detent::onnx
