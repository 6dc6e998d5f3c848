#include "onnx/wire.h"

#include <fmt/format.h>

#include <array>
#include <limits>
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

namespace {

struct TypeFacts {
  int bits;
  std::string_view name;
};

constexpr std::array<TypeFacts, 27> kFacts{{
    {0, "undefined"},      {32, "float32"},  {8, "uint8"},        {8, "int8"},           {16, "uint16"},
    {16, "int16"},         {32, "int32"},    {64, "int64"},       {0, "string"},         {8, "bool"},
    {16, "float16"},       {64, "float64"},  {32, "uint32"},      {64, "uint64"},        {64, "complex64"},
    {128, "complex128"},   {16, "bfloat16"}, {8, "float8e4m3fn"}, {8, "float8e4m3fnuz"}, {8, "float8e5m2"},
    {8, "float8e5m2fnuz"}, {4, "uint4"},     {4, "int4"},         {4, "float4e2m1"},     {8, "float8e8m0"},
    {2, "uint2"},          {2, "int2"},
}};

const TypeFacts* facts(DataType type) noexcept {
  const auto index = static_cast<std::size_t>(type);
  return index < kFacts.size() ? &kFacts[index] : nullptr;
}

}  // namespace

int bits_of(DataType type) noexcept {
  const TypeFacts* f = facts(type);
  return f == nullptr ? 0 : f->bits;
}

std::string_view name_of(DataType type) noexcept {
  const TypeFacts* f = facts(type);
  return f == nullptr ? "unknown" : f->name;
}

std::optional<std::int64_t> element_count(std::span<const std::int64_t> dims) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t d : dims) {
    if (d < 0 || __builtin_mul_overflow(count, d, &count)) return std::nullopt;
  }
  return count;
}

std::optional<std::uint64_t> byte_count(DataType type, std::int64_t count) noexcept {
  const auto bits = static_cast<std::uint64_t>(bits_of(type));
  std::uint64_t total = 0;
  if (count < 0 || __builtin_mul_overflow(static_cast<std::uint64_t>(count), bits, &total)) return std::nullopt;
  if (total > std::numeric_limits<std::uint64_t>::max() - 7) return std::nullopt;
  return (total + 7) / 8;
}

}  // namespace detent::onnx
