#include "data/formats/npz.h"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/failure.h"
#include "data/buffer.h"
#include "data/formats/text.h"

namespace detent::data {
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
