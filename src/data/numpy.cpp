#include "data/numpy.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"

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

namespace {

constexpr std::string_view kSuffix = ".npy";
constexpr std::uint64_t kBestDeflateRatio = 1032;  // deflate cannot pack tighter (zlib's technical notes)

// Throws where the machine is at fault and not the archive. Not all that libzip fails to allocate is told as such:
// callers clear errno before the call that failed.
void check_machine(zip_error_t* error, const std::string& where) {
  const bool no_memory = errno == ENOMEM;
  const int code = zip_error_code_system(error);
  if (no_memory || zip_error_code_zip(error) == ZIP_ER_MEMORY)
    throw resource_error(fmt::format("{}: no memory to read the archive", where));
  if (zip_error_system_type(error) == ZIP_ET_SYS && code != 0)
    throw failed_call(code, where + " cannot be read", ErrorKind::bad_input);
}

[[noreturn]] void throw_zip(zip_error_t* error, const std::string& where) {
  const std::unique_ptr<zip_error_t, void (*)(zip_error_t*)> end(error, zip_error_fini);
  check_machine(error, where);
  const int code = zip_error_code_zip(error);
  const std::string text = printable(zip_error_strerror(error));
  const bool no_archive = code == ZIP_ER_NOZIP || code == ZIP_ER_INCONS;
  throw bad_input(fmt::format("{}: {}", where, no_archive ? "not a whole zip archive (" + text + ")" : text),
                  no_archive ? "write it again with numpy.savez" : "");
}

[[noreturn]] void throw_damaged(const std::string& where, std::string_view text) {
  throw bad_input(fmt::format("{}: damaged archive: {}", where, text), "write or copy the file again");
}

/// Reads until `to` is full or the member ends; the number of bytes read.
std::size_t read_some(zip_file* member, std::span<std::byte> to, const std::string& where) {
  std::size_t done = 0;
  while (done < to.size()) {
    errno = 0;
    const zip_int64_t n = zip_fread(member, to.data() + done, to.size() - done);
    if (n < 0) {
      check_machine(zip_file_get_error(member), where);
      throw_damaged(where, printable(zip_file_strerror(member)));
    }
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

void check_sizes(const zip_stat_t& info, std::uint64_t archive_size, const std::string& where) {
  constexpr zip_uint64_t kNeeded =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((info.valid & kNeeded) != kNeeded) throw_damaged(where, "sizes are missing");
  if (info.encryption_method != ZIP_EM_NONE) {
    throw bad_input(fmt::format("{}: the member is encrypted", where), "write the archive with numpy.savez");
  }
  if (info.comp_method != ZIP_CM_STORE && info.comp_method != ZIP_CM_DEFLATE) {
    throw bad_input(fmt::format("{}: compression method {} is not supported", where, info.comp_method),
                    "write the archive with numpy.savez or numpy.savez_compressed");
  }
  const bool stored = info.comp_method == ZIP_CM_STORE;
  if (info.comp_size > archive_size || (stored && info.size != info.comp_size) ||
      info.size / kBestDeflateRatio > info.comp_size) {
    throw_damaged(where, fmt::format("{} bytes cannot come out of {} in an archive of {}", info.size, info.comp_size,
                                     archive_size));
  }
}

}  // namespace

void NpzFile::CloseArchive::operator()(zip* archive) const noexcept { zip_discard(archive); }
void NpzFile::CloseMember::operator()(zip_file* member) const noexcept { zip_fclose(member); }

NpzFile NpzFile::open(const std::filesystem::path& path) {
  const std::string where = quoted(path);
  std::error_code failed;
  // libzip would wait for a writer on a FIFO.
  const bool is_regular = std::filesystem::is_regular_file(path, failed);
  if (!is_regular && !failed) throw bad_input(where + " is not a regular file");
  const std::uintmax_t size = failed ? 0 : std::filesystem::file_size(path, failed);
  if (failed) throw failed_call(errno_of(failed), where + " cannot be read", ErrorKind::bad_input);
  if (size == 0) throw bad_input(fmt::format("{}: the file is empty", where), "write it again with numpy.savez");
  int code = 0;
  errno = 0;
  std::unique_ptr<zip, CloseArchive> archive(zip_open(path.string().c_str(), ZIP_RDONLY, &code));
  if (!archive) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    throw_zip(&error, where);
  }
  return {std::move(archive), size, where};
}

NpzFile NpzFile::from_memory(std::span<const std::byte> bytes, const std::string& where) {
  zip_error_t error;
  zip_error_init(&error);
  errno = 0;
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  if (source == nullptr) throw_zip(&error, where);
  std::unique_ptr<zip, CloseArchive> archive(zip_open_from_source(source, ZIP_RDONLY, &error));
  if (!archive) {
    zip_source_free(source);  // an opened archive would own it
    throw_zip(&error, where);
  }
  zip_error_fini(&error);
  return {std::move(archive), bytes.size(), where};
}

NpzFile::NpzFile(std::unique_ptr<zip, CloseArchive> archive, std::uint64_t archive_size, std::string where)
    : archive_(std::move(archive)), archive_size_(archive_size), where_(std::move(where)) {
  std::set<std::string_view> seen;
  const zip_int64_t count = std::max<zip_int64_t>(0, zip_get_num_entries(archive_.get(), 0));
  keys_.reserve(static_cast<std::size_t>(count));
  for (zip_int64_t i = 0; i < count; ++i) {
    errno = 0;
    const char* name = zip_get_name(archive_.get(), static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW);
    if (name == nullptr) {
      check_machine(zip_get_error(archive_.get()), where_);
      throw_damaged(where_, "a member has no name");
    }
    std::string key = name;
    if (!key.ends_with(kSuffix)) {
      throw bad_input(fmt::format("{}: the member '{}' is not a .npy array", where_, printable(key, 120)),
                      "write the archive with numpy.savez");
    }
    key.resize(key.size() - kSuffix.size());
    keys_.push_back(std::move(key));
    if (!seen.insert(keys_.back()).second) {
      throw bad_input(fmt::format("{}: the key '{}' appears twice", where_, printable(keys_.back(), 120)));
    }
  }
}

std::string NpzFile::where(std::size_t index) const {
  return fmt::format("{} key '{}'", where_, printable(keys_.at(index), 120));
}

NpzFile::Stream NpzFile::stream(std::size_t index) const {
  const std::string name = where(index);
  zip_stat_t info;
  zip_stat_init(&info);
  if (zip_stat_index(archive_.get(), index, 0, &info) != 0) throw_damaged(name, zip_strerror(archive_.get()));
  errno = 0;
  check_sizes(info, archive_size_, name);
  Stream result{std::unique_ptr<zip_file, CloseMember>(zip_fopen_index(archive_.get(), index, 0)), info.size};
  if (!result.member) {
    check_machine(zip_get_error(archive_.get()), name);
    throw_damaged(name, printable(zip_strerror(archive_.get())));
  }
  return result;
}

NpyHeader NpzFile::read_header(const Stream& stream, const std::string& where) const {
  std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::uint64_t>(kNpyPrefix, stream.size)));
  if (read_some(stream.member.get(), start, where) != start.size()) throw_damaged(where, "it ends early");
  const std::size_t end = npy_header_end(start, stream.size, where);
  const std::size_t have = start.size();
  if (end < have) throw_damaged(where, "the .npy header is too short");
  start.resize(end);
  if (read_some(stream.member.get(), std::span(start).subspan(have), where) != end - have) {
    throw_damaged(where, "it ends early");
  }
  return parse_npy_header(start, stream.size, where);
}

NpyHeader NpzFile::header(std::size_t index) const { return read_header(stream(index), where(index)); }

Array NpzFile::read(std::size_t index) const {
  const std::string name = where(index);
  const Stream member = stream(index);
  const NpyHeader header = read_header(member, name);
  const Buffer buffer = allocate(header.data_bytes, name);
  if (read_some(member.member.get(), buffer.bytes, name) != buffer.bytes.size()) throw_damaged(name, "it ends early");
  std::byte beyond{};
  // Reading up to the end is also what makes libzip compare the checksum.
  if (read_some(member.member.get(), std::span(&beyond, 1), name) != 0)
    throw_damaged(name, "it is longer than declared");
  return npy_array(header, buffer.bytes, buffer.memory, name);
}

}  // namespace detent::data
