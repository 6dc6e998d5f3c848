#include "onnx/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <protozero/pbf_message.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/text.h"
#include "onnx/packed_numbers.h"

namespace detent::onnx {
namespace {

std::uint64_t parse_number(const std::string& key, const std::string& text, const std::string& where) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc() || end != text.data() + text.size()) {
    throw bad_input(fmt::format("{}: external data {} '{}' is not a whole number", where, key, printable(text)));
  }
  return value;
}

struct ExternalRef {
  std::string location;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> length;
};

// Only the keys of the ONNX specification.
ExternalRef parse_external(const std::vector<std::pair<std::string, std::string>>& entries, const std::string& where) {
  ExternalRef ref;
  for (const auto& [key, value] : entries) {
    if (key == "location") {
      ref.location = value;
    } else if (key == "offset") {
      ref.offset = parse_number(key, value, where);
    } else if (key == "length") {
      ref.length = parse_number(key, value, where);
    } else if (key != "checksum" && key != "basepath") {
      throw bad_input(fmt::format("{}: unknown external data key '{}'", where, printable(key)));
    }
  }
  return ref;
}

constexpr std::size_t kPiece = std::size_t{4} << 20;

// Gives back what has been read of a mapped tensor, from its start: the kernel maps pages around each fault, also
// behind it, so releasing only the last piece would leave some of every piece resident.
void release_up_to(const std::shared_ptr<const MappedFile>& file, std::span<const std::byte> bytes, std::size_t end) {
  if (file && (end % kPiece == 0 || end == bytes.size())) file->release(bytes.first(end));
}

template <class From, class To>
std::vector<To> convert(const Tensor& tensor) {
  const auto bytes = tensor.data.bytes();
  std::vector<To> out(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(value);
  }
  return out;
}

std::vector<std::int64_t> unpacked_nibbles(const Tensor& tensor) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(tensor.count()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = nibble_at(tensor.data.bytes(), i, tensor.type == DataType::int4);
  return out;
}

}  // namespace

std::shared_ptr<const MappedFile> ExternalFiles::open(const std::string& location, const std::string& where) {
  const auto known = files_.find(location);
  if (known != files_.end()) return known->second;
  auto file = boundary_.open(location, where + ": external data file");
  files_.emplace(location, file);
  return file;
}

TensorData TensorData::mapped(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes) {
  TensorData data;
  data.size_ = bytes.size();
  data.bytes_ = bytes;
  data.file_ = std::move(file);
  return data;
}

TensorData TensorData::owned(std::vector<std::byte> bytes) {
  TensorData data;
  data.owned_ = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  data.bytes_ = *data.owned_;
  data.size_ = data.bytes_.size();
  return data;
}

TensorData TensorData::produced(std::uint64_t size, Producer produce) {
  TensorData data;
  data.size_ = size;
  data.produce_ = std::make_shared<const Producer>(std::move(produce));
  return data;
}

std::span<const std::byte> TensorData::bytes() const {
  if (produce_) throw internal_error("the elements of a produced tensor were asked for in place");
  return bytes_;
}

void TensorData::write_to(const Sink& sink) const {
  if (produce_) {
    (*produce_)(sink);
    return;
  }
  for (std::size_t at = 0; at < bytes_.size(); at += kPiece) {
    const auto piece = bytes_.subspan(at, std::min(kPiece, bytes_.size() - at));
    sink(piece);
    release_up_to(file_, bytes_, at + piece.size());
  }
}

std::int64_t Tensor::count() const { return element_count(dims).value_or(0); }

void for_each_float(const TensorData& data, const std::function<void(std::span<const float>, std::int64_t)>& fn) {
  constexpr std::size_t kPart = (std::size_t{64} << 10) * sizeof(float);
  const auto bytes = data.bytes();
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0;
  std::vector<float> copy(aligned ? 0 : std::min(kPart, bytes.size()) / sizeof(float));
  for (std::size_t at = 0; at < bytes.size(); at += kPart) {
    const auto part = bytes.subspan(at, std::min(kPart, bytes.size() - at));
    if (!aligned) std::memcpy(copy.data(), part.data(), part.size());
    const auto* values = aligned ? reinterpret_cast<const float*>(part.data()) : copy.data();
    fn({values, part.size() / sizeof(float)}, static_cast<std::int64_t>(at / sizeof(float)));
    release_up_to(data.file(), bytes, at + part.size());
  }
}

std::vector<std::int64_t> to_int64s(const Tensor& tensor) {
  switch (tensor.type) {
    case DataType::int64: return convert<std::int64_t, std::int64_t>(tensor);
    case DataType::int32: return convert<std::int32_t, std::int64_t>(tensor);
    case DataType::int16: return convert<std::int16_t, std::int64_t>(tensor);
    case DataType::int8: return convert<std::int8_t, std::int64_t>(tensor);
    case DataType::uint32: return convert<std::uint32_t, std::int64_t>(tensor);
    case DataType::uint16: return convert<std::uint16_t, std::int64_t>(tensor);
    case DataType::uint8: return convert<std::uint8_t, std::int64_t>(tensor);
    case DataType::boolean: return convert<std::uint8_t, std::int64_t>(tensor);
    case DataType::int4:
    case DataType::uint4: return unpacked_nibbles(tensor);
    default: throw bad_input("tensor '" + tensor.name + "' was expected to hold integers");
  }
}

std::vector<double> to_doubles(const Tensor& tensor) {
  switch (tensor.type) {
    case DataType::float32: return convert<float, double>(tensor);
    case DataType::float64: return convert<double, double>(tensor);
    case DataType::float16: {
      std::vector<double> out;
      for (const auto h : convert<std::uint16_t, std::uint16_t>(tensor)) out.push_back(from_float16(h));
      return out;
    }
    case DataType::bfloat16: {
      std::vector<double> out;
      for (const auto b : convert<std::uint16_t, std::uint16_t>(tensor)) out.push_back(from_bfloat16(b));
      return out;
    }
    default: throw bad_input("tensor '" + tensor.name + "' was expected to hold floating-point numbers");
  }
}

namespace {

enum class Field : protozero::pbf_tag_type {
  dims = 1,
  data_type = 2,
  segment = 3,
  float_data = 4,
  int32_data = 5,
  string_data = 6,
  int64_data = 7,
  name = 8,
  raw_data = 9,
  double_data = 10,
  uint64_data = 11,
  external_data = 13,
  data_location = 14,
};

// What stands in the message before it is checked against itself.
struct Parsed {
  Tensor tensor;
  std::string_view raw_data;
  bool has_raw = false;
  bool is_external = false;
  bool has_strings = false;
  std::string_view packed;  // float_data or double_data as one packed run: the same bytes as raw_data
  std::vector<std::byte> typed;
  bool wrong_field = false;   // typed data in a field that is not the type's
  bool out_of_range = false;  // a typed value that the type cannot hold
  std::vector<std::pair<std::string, std::string>> external;
};

void append(std::vector<std::byte>& out, const void* value, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(value);
  out.insert(out.end(), bytes, bytes + size);
}

// The one typed field that may hold elements of the type (onnx.proto3, comments of TensorProto).
Field typed_field(DataType type) {
  switch (type) {
    case DataType::float32:
    case DataType::complex64: return Field::float_data;
    case DataType::float64:
    case DataType::complex128: return Field::double_data;
    case DataType::int64: return Field::int64_data;
    case DataType::uint32:
    case DataType::uint64: return Field::uint64_data;
    default: return Field::int32_data;
  }
}

// int32_data carries every integer type of up to 32 bits, and float16 and the like as their bit patterns. Sub-byte
// values come packed into bytes, which some writers extend by sign.
template <class Value>
bool fits(DataType type, Value value) {
  const int bits = bits_of(type);
  if (bits == 0 || bits >= static_cast<int>(sizeof(Value) * 8)) return true;
  const bool is_signed = type == DataType::int8 || type == DataType::int16;
  const Value low = is_signed ? -(Value{1} << (bits - 1)) : bits < 8 ? static_cast<Value>(-128) : Value{0};
  const Value high = is_signed ? (Value{1} << (bits - 1)) - 1 : (Value{1} << std::max(bits, 8)) - 1;
  return (std::is_signed_v<Value> ? value >= low : true) && value <= high;
}

void append_typed(Parsed& parsed, Field field, const void* value, std::size_t size) {
  parsed.wrong_field = parsed.wrong_field || field != typed_field(parsed.tensor.type);
  append(parsed.typed, parsed.packed.data(), parsed.packed.size());  // runs and single values may alternate
  parsed.packed = {};
  append(parsed.typed, value, size);
}

template <class Value>
void append_narrowed(Parsed& parsed, Field field, Value value) {
  const int bits = bits_of(parsed.tensor.type);
  const std::size_t width = bits == 0 ? sizeof(Value) : static_cast<std::size_t>(bits + 7) / 8;
  if constexpr (std::is_integral_v<Value>)
    parsed.out_of_range = parsed.out_of_range || !fits(parsed.tensor.type, value);
  append_typed(parsed, field, &value, std::min(width, sizeof(Value)));
}

template <class Range>
void append_all(Parsed& parsed, Field field, const Range& range) {
  for (const auto value : range) append_narrowed(parsed, field, value);
}

std::pair<std::string, std::string> read_entry(const protozero::data_view& view) {
  std::pair<std::string, std::string> entry;
  protozero::pbf_reader reader(view);
  while (reader.next()) {
    const bool text = reader.wire_type() == protozero::pbf_wire_type::length_delimited;
    if (text && reader.tag() == 1) {
      entry.first = reader.get_string();
    } else if (text && reader.tag() == 2) {
      entry.second = reader.get_string();
    } else {
      reader.skip();
    }
  }
  return entry;
}

template <class Reader>
void read_float_run(Parsed& parsed, Field field, Reader& message) {
  const auto view = message.get_view();
  if (parsed.packed.empty() && parsed.typed.empty() && field == typed_field(parsed.tensor.type)) {
    parsed.packed = {view.data(), view.size()};
  } else {
    append_typed(parsed, field, view.data(), view.size());
  }
}

// data_type has a higher field number than dims but may stand anywhere; int32_data needs it, so it is read first.
DataType read_type(const Wire& raw) {
  DataType type = DataType::undefined;
  protozero::pbf_message<Field> m(raw.view().data(), raw.view().size());
  while (m.next()) {
    if (m.tag_and_type() == protozero::tag_and_type(Field::data_type, protozero::pbf_wire_type::varint)) {
      type = static_cast<DataType>(m.get_int32());
    } else {
      m.skip();
    }
  }
  return type;
}

// Elements in a field of their type, packed or one by one; false when the field at hand holds none.
bool read_elements(Parsed& parsed, protozero::pbf_message<Field>& m) {
  using protozero::pbf_wire_type;
  using protozero::tag_and_type;
  const Field field = m.tag();  // in debug builds, reading the value forgets it
  switch (m.tag_and_type()) {
    case tag_and_type(Field::float_data, pbf_wire_type::length_delimited):
    case tag_and_type(Field::double_data, pbf_wire_type::length_delimited): read_float_run(parsed, field, m); break;
    case tag_and_type(Field::float_data, pbf_wire_type::fixed32): append_narrowed(parsed, field, m.get_float()); break;
    case tag_and_type(Field::double_data, pbf_wire_type::fixed64):
      append_narrowed(parsed, field, m.get_double());
      break;
    case tag_and_type(Field::int32_data, pbf_wire_type::length_delimited):
      append_all(parsed, field, m.get_packed_int32());
      break;
    case tag_and_type(Field::int32_data, pbf_wire_type::varint): append_narrowed(parsed, field, m.get_int32()); break;
    case tag_and_type(Field::int64_data, pbf_wire_type::length_delimited):
      append_all(parsed, field, m.get_packed_int64());
      break;
    case tag_and_type(Field::int64_data, pbf_wire_type::varint): append_narrowed(parsed, field, m.get_int64()); break;
    case tag_and_type(Field::uint64_data, pbf_wire_type::length_delimited):
      append_all(parsed, field, m.get_packed_uint64());
      break;
    case tag_and_type(Field::uint64_data, pbf_wire_type::varint): append_narrowed(parsed, field, m.get_uint64()); break;
    default: return false;
  }
  return true;
}

Parsed parse(const Wire& raw) {
  using protozero::pbf_wire_type;
  using protozero::tag_and_type;
  Parsed parsed;
  parsed.tensor.type = read_type(raw);
  protozero::pbf_message<Field> m(raw.view().data(), raw.view().size());
  while (m.next()) {
    switch (m.tag_and_type()) {
      case tag_and_type(Field::dims, pbf_wire_type::varint): parsed.tensor.dims.push_back(m.get_int64()); break;
      case tag_and_type(Field::dims, pbf_wire_type::length_delimited):
        for (const auto d : m.get_packed_int64()) parsed.tensor.dims.push_back(d);
        break;
      case tag_and_type(Field::name, pbf_wire_type::length_delimited): parsed.tensor.name = m.get_string(); break;
      case tag_and_type(Field::raw_data, pbf_wire_type::length_delimited): {
        const auto view = m.get_view();
        parsed.raw_data = {view.data(), view.size()};
        parsed.has_raw = true;
        break;
      }
      case tag_and_type(Field::string_data, pbf_wire_type::length_delimited):
        parsed.has_strings = true;
        m.skip();
        break;
      case tag_and_type(Field::external_data, pbf_wire_type::length_delimited):
        parsed.external.push_back(read_entry(m.get_view()));
        break;
      case tag_and_type(Field::data_location, pbf_wire_type::varint): parsed.is_external = m.get_int32() == 1; break;
      case tag_and_type(Field::segment, pbf_wire_type::length_delimited):
        throw bad_input(fmt::format("tensor '{}': segmented tensors are not supported", printable(parsed.tensor.name)));
      default:
        if (!read_elements(parsed, m)) m.skip();
    }
  }
  return parsed;
}

TensorData external_data(const Parsed& parsed, std::uint64_t need, ExternalFiles& files, const std::string& at) {
  const ExternalRef ref = parse_external(parsed.external, at);
  const auto file = files.open(ref.location, at);
  const std::uint64_t size = file->bytes().size();
  const std::uint64_t length = ref.length.value_or(need);
  if (length != need) {
    throw bad_input(fmt::format("{}: external data length is {} bytes, type and shape need {}", at, length, need));
  }
  if (ref.offset > size || need > size - ref.offset) {
    throw bad_input(fmt::format("{}: external data at offset {} need {} bytes but '{}' has {}", at, ref.offset, need,
                                file->path().string(), size),
                    "the data file is truncated or belongs to another model");
  }
  return TensorData::mapped(file, file->bytes().subspan(ref.offset, need));
}

TensorData place(const std::shared_ptr<const MappedFile>& file, std::string_view bytes) {
  if (file) return TensorData::mapped(file, as_byte_span(bytes));
  const auto span = as_byte_span(bytes);
  return TensorData::owned({span.begin(), span.end()});
}

// Sub-byte values in int32_data are stored packed, two (or four) to an entry, exactly as the bytes of raw_data.
TensorData inline_data(Parsed& parsed, std::uint64_t need, const std::shared_ptr<const MappedFile>& file,
                       const std::string& at) {
  const int forms =
      static_cast<int>(parsed.has_raw) + static_cast<int>(!parsed.packed.empty() || !parsed.typed.empty());
  if (parsed.wrong_field) {
    throw bad_input(
        fmt::format("{}: its values are in a field that is not for type {}", at, name_of(parsed.tensor.type)));
  }
  if (parsed.out_of_range) {
    throw bad_input(fmt::format("{}: a value does not fit type {}", at, name_of(parsed.tensor.type)));
  }
  if (forms > 1) throw bad_input(fmt::format("{}: both raw_data and typed data are present", at));
  const std::string_view in_place = parsed.has_raw ? parsed.raw_data : parsed.packed;
  const std::uint64_t have = parsed.typed.empty() ? in_place.size() : parsed.typed.size();
  if (have != need) {
    throw bad_input(fmt::format("{}: the data are {} bytes, type {} and shape [{}] need {}", at, have,
                                name_of(parsed.tensor.type), fmt::join(parsed.tensor.dims, ","), need),
                    "the model file is damaged; export it again");
  }
  return parsed.typed.empty() ? place(file, in_place) : TensorData::owned(std::move(parsed.typed));
}

}  // namespace

Tensor read_tensor(const Wire& raw, const std::shared_ptr<const MappedFile>& file, ExternalFiles& external,
                   const std::string& where) {
  Parsed parsed = with_damage_as_bad_input(where, [&] { return parse(raw); });
  Tensor& tensor = parsed.tensor;
  tensor.raw = raw;
  const std::string at = fmt::format("{}, tensor '{}'", where, printable(tensor.name));
  const auto count = element_count(tensor.dims);
  if (!count) throw bad_input(fmt::format("{}: shape [{}] is not valid", at, fmt::join(tensor.dims, ",")));
  if (tensor.type == DataType::string || bits_of(tensor.type) == 0) {
    if (parsed.is_external) {
      throw bad_input(fmt::format("{}: external data of type {} are not supported", at, name_of(tensor.type)),
                      "store it inside of the model file");
    }
    return tensor;
  }
  const auto need = byte_count(tensor.type, *count);
  if (!need) throw bad_input(fmt::format("{}: shape [{}] is too large", at, fmt::join(tensor.dims, ",")));
  if (parsed.has_strings) throw bad_input(fmt::format("{}: string data in a {} tensor", at, name_of(tensor.type)));
  tensor.is_external = parsed.is_external;
  tensor.data = parsed.is_external ? external_data(parsed, *need, external, at) : inline_data(parsed, *need, file, at);
  return tensor;
}

}  // namespace detent::onnx
