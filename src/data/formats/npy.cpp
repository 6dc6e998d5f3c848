#include "data/formats/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "data/buffer.h"
#include "data/formats/text.h"

namespace detent::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 20;
constexpr std::size_t kMaxRank = 64;

unsigned byte_at(std::span<const std::byte> bytes, std::size_t at) { return std::to_integer<unsigned>(bytes[at]); }

/// Reads the one Python expression a header may hold: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  std::string_view descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;

  void parse() {
    expect('{');
    int seen = 0;
    while (!eat('}')) {
      seen |= entry(seen);
      if (!eat(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("text after the closing brace");
    if (seen != (kDescr | kOrder | kShape)) fail("it must hold 'descr', 'fortran_order' and 'shape'");
  }

 private:
  enum Key { kDescr = 1, kOrder = 2, kShape = 4 };

  int entry(int seen) {
    const std::string_view name = string();
    expect(':');
    const int key = name == "descr" ? kDescr : name == "fortran_order" ? kOrder : name == "shape" ? kShape : 0;
    if (key == 0) fail(fmt::format("unknown key '{}'", printable(name, 40)));
    if ((seen & key) != 0) fail(fmt::format("'{}' is there twice", name));
    if (key == kDescr) {
      if (peek() == '[' || peek() == '(' || peek() == '{') refuse_structured();
      descr = string();
    } else if (key == kOrder) {
      fortran_order = boolean();
    } else {
      tuple();
    }
    return key;
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool eat(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!eat(c)) fail(fmt::format("'{}' expected at character {}", c, at_));
  }

  std::string_view string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail(fmt::format("a string expected at character {}", at_));
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string does not end");
    const std::string_view value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    fail("'fortran_order' must be True or False");
  }

  void tuple() {
    expect('(');
    bool comma = true;
    while (!eat(')')) {
      if (!comma) fail(fmt::format("',' expected at character {}", at_));
      if (shape.size() == kMaxRank) fail(fmt::format("more than {} dimensions", kMaxRank));
      shape.push_back(integer());
      comma = eat(',');
    }
    if (shape.size() == 1 && !comma) fail("a shape of one dimension is written (N,)");
  }

  std::int64_t integer() {
    skip_space();
    std::int64_t value = 0;
    const auto [end, status] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (status != std::errc() || value < 0) fail(fmt::format("a dimension expected at character {}", at_));
    at_ = static_cast<std::size_t>(end - text_.data());
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
    return value;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw bad_input(fmt::format("{}: malformed .npy header: {}", where_, what), "write the file again with numpy.save");
  }
  [[noreturn]] void refuse_structured() const {
    throw bad_input(fmt::format("{}: structured arrays are not supported", where_),
                    "save one plain array for each input, for example with numpy.savez");
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

struct TypeCode {
  std::string_view code;
  onnx::DataType type;
};

constexpr std::array<TypeCode, 12> kTypeCodes{{{"b1", onnx::DataType::boolean},
                                               {"i1", onnx::DataType::int8},
                                               {"i2", onnx::DataType::int16},
                                               {"i4", onnx::DataType::int32},
                                               {"i8", onnx::DataType::int64},
                                               {"u1", onnx::DataType::uint8},
                                               {"u2", onnx::DataType::uint16},
                                               {"u4", onnx::DataType::uint32},
                                               {"u8", onnx::DataType::uint64},
                                               {"f2", onnx::DataType::float16},
                                               {"f4", onnx::DataType::float32},
                                               {"f8", onnx::DataType::float64}}};

[[noreturn]] void refuse_type(std::string_view descr, const std::string& where) {
  const std::string_view kind = descr.substr(std::min<std::size_t>(1, descr.size()), 1);
  const std::string shown = printable(descr, 40);
  if (kind == "O") {
    throw bad_input(fmt::format("{}: an object array (Python pickle) is never loaded", where),
                    "save a numeric array: rows of unequal length must be padded or stored in files of their own");
  }
  if (kind == "S" || kind == "U" || kind == "a") {
    throw bad_input(fmt::format("{}: string arrays ('{}') are not supported", where, shown), "save numbers");
  }
  if (kind == "V") {
    throw bad_input(fmt::format("{}: raw bytes of unknown type ('{}') are not supported", where, shown),
                    ".npy has no bfloat16 or float8: give these as test_data_set_*/input_N.pb");
  }
  throw bad_input(fmt::format("{}: arrays of type '{}' are not supported", where, shown),
                  "save it as bool, int8 to int64, uint8 to uint64, float16, float32 or float64");
}

onnx::DataType type_of(std::string_view descr, const std::string& where) {
  const auto* found = kTypeCodes.end();
  if (descr.size() == 3) {
    found = std::find_if(kTypeCodes.begin(), kTypeCodes.end(),
                         [&](const TypeCode& t) { return t.code == descr.substr(1); });
  }
  if (found == kTypeCodes.end()) refuse_type(descr, where);
  const bool one_byte = descr[2] == '1';
  if (descr[0] == '>' && !one_byte) {
    throw bad_input(fmt::format("{}: a big-endian array ('{}') is not supported", where, descr),
                    fmt::format("save it little-endian: numpy.save(path, array.astype('<{}'))", descr.substr(1)));
  }
  if (descr[0] != '<' && !(one_byte && (descr[0] == '|' || descr[0] == '>'))) refuse_type(descr, where);
  return found->type;
}

/// Copies column-ordered elements into row order. The innermost loop walks the last axis, whose source stride is
/// constant.
template <std::size_t Size>
void transpose(std::span<const std::byte> from, std::span<std::byte> to, std::span<const std::int64_t> shape) {
  const std::size_t rank = shape.size();
  std::vector<std::size_t> stride(rank, Size);
  for (std::size_t d = 1; d < rank; ++d) stride[d] = stride[d - 1] * static_cast<std::size_t>(shape[d - 1]);
  std::vector<std::int64_t> index(rank, 0);
  std::size_t row = 0;
  for (std::size_t out = 0; out < to.size();) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape[rank - 1]); ++i, out += Size) {
      std::memcpy(&to[out], &from[row + i * stride[rank - 1]], Size);
    }
    for (std::size_t d = rank - 1; d-- > 0;) {
      row += stride[d];
      if (++index[d] < shape[d]) break;
      row -= stride[d] * static_cast<std::size_t>(shape[d]);
      index[d] = 0;
    }
  }
}

}  // namespace

std::size_t npy_header_end(std::span<const std::byte> prefix, std::uint64_t file_size, const std::string& where) {
  if (file_size == 0) throw bad_input(fmt::format("{}: the file is empty", where), "write it again with numpy.save");
  if (!as_text(prefix).starts_with(kMagic)) {
    throw bad_input(fmt::format("{}: not a .npy file (it does not begin with \\x93NUMPY)", where),
                    "write it with numpy.save");
  }
  const std::string cut = fmt::format("{}: the .npy header is cut short", where);
  if (prefix.size() < 10) throw bad_input(cut, "the file is incomplete: write or copy it again");
  const unsigned major = byte_at(prefix, 6);
  const unsigned minor = byte_at(prefix, 7);
  if (major < 1 || major > 3 || minor != 0) {
    throw bad_input(fmt::format("{}: .npy version {}.{} is not known (1.0, 2.0 and 3.0 are)", where, major, minor));
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (prefix.size() < 8 + length_bytes) throw bad_input(cut, "the file is incomplete: write or copy it again");
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::size_t>(byte_at(prefix, 8 + i)) << (8 * i);
  const std::size_t end = 8 + length_bytes + length;
  if (end > file_size) throw bad_input(cut, "the file is incomplete: write or copy it again");
  if (length > kMaxHeader)
    throw bad_input(fmt::format("{}: a .npy header of {} is refused", where, format_size(length)));
  return end;
}

NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_size, const std::string& where) {
  const std::size_t end = npy_header_end(start.first(std::min(start.size(), kNpyPrefix)), file_size, where);
  if (end > start.size()) throw internal_error(fmt::format("{}: header read in part only", where));
  const std::size_t text_at = byte_at(start, 6) == 1 ? 10 : 12;
  HeaderParser parser(as_text(start.subspan(text_at, end - text_at)), where);
  parser.parse();

  NpyHeader header;
  header.type = type_of(parser.descr, where);
  header.shape = std::move(parser.shape);
  header.fortran_order = parser.fortran_order;
  header.data_offset = end;
  header.data_bytes = size_of(header.type, header.shape, where);
  const std::uint64_t found = file_size - end;
  if (found < header.data_bytes) {
    throw bad_input(fmt::format("{}: truncated: {} needs {} bytes of data, found {}", where,
                                describe(header.type, header.shape), header.data_bytes, found),
                    "the file is incomplete: write or copy it again");
  }
  if (found > header.data_bytes) {
    throw bad_input(fmt::format("{}: {} trailing bytes after the data of {}", where, found - header.data_bytes,
                                describe(header.type, header.shape)),
                    "keep one array in a file, written with numpy.save");
  }
  return header;
}

Array npy_array(const NpyHeader& header, std::span<const std::byte> data, std::shared_ptr<const void> owner,
                const std::string& where) {
  if (!header.fortran_order || header.shape.size() < 2) {
    return aligned({header.type, header.shape, data, std::move(owner)}, where);
  }
  const Buffer buffer = allocate(data.size(), where);
  switch (onnx::bits_of(header.type)) {
    case 8: transpose<1>(data, buffer.bytes, header.shape); break;
    case 16: transpose<2>(data, buffer.bytes, header.shape); break;
    case 32: transpose<4>(data, buffer.bytes, header.shape); break;
    default: transpose<8>(data, buffer.bytes, header.shape); break;
  }
  return {header.type, header.shape, buffer.bytes, buffer.memory};
}

}  // namespace detent::data
