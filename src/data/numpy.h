// The .npy format (numpy.lib.format, versions 1.0 to 3.0): a short text header, then the array's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"

namespace detent::data {

struct NpyHeader {
  onnx::DataType type = onnx::DataType::undefined;
  std::vector<std::int64_t> shape;
  bool fortran_order = false;
  std::size_t data_offset = 0;   // from the file's start
  std::uint64_t data_bytes = 0;  // data_offset + data_bytes is exactly the file's size
};

/// As many leading bytes of a file as tell where its header ends.
inline constexpr std::size_t kNpyPrefix = 12;

/// Where the header ends and the data begins, from the first kNpyPrefix bytes (fewer when the file is shorter).
std::size_t npy_header_end(std::span<const std::byte> prefix, std::uint64_t file_size, const std::string& where);

/// Parses the header at the front of `start`, which must reach at least to npy_header_end(), and holds the sizes it
/// declares against `file_size`. `where` names the file in messages.
NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_size, const std::string& where);

/// The array behind a checked header; `data` are the bytes from data_offset on. They stay where they are unless they
/// are in column order or misaligned.
Array npy_array(const NpyHeader& header, std::span<const std::byte> data, std::shared_ptr<const void> owner,
                const std::string& where);

}  // namespace detent::data

// The .npz format: a zip archive of .npy members, stored or deflated. Nothing is ever unpacked to disk.

struct zip;
struct zip_file;

namespace detent::data {

class NpzFile {
 public:
  static NpzFile open(const std::filesystem::path& path);
  /// `archive` must outlive the object.
  static NpzFile from_memory(std::span<const std::byte> archive, const std::string& where);

  /// Member names without ".npy", in the order of the archive; distinct.
  const std::vector<std::string>& keys() const noexcept { return keys_; }
  /// Reads and checks a member's header alone, so that callers can refuse an array before memory is spent on it.
  NpyHeader header(std::size_t index) const;
  Array read(std::size_t index) const;
  /// "'a.npz' key 'x'", for messages.
  std::string where(std::size_t index) const;

 private:
  struct CloseArchive {
    void operator()(zip* archive) const noexcept;
  };
  struct CloseMember {
    void operator()(zip_file* member) const noexcept;
  };
  struct Stream {
    std::unique_ptr<zip_file, CloseMember> member;
    std::uint64_t size = 0;  // declared
  };

  NpzFile(std::unique_ptr<zip, CloseArchive> archive, std::uint64_t archive_size, std::string where);
  Stream stream(std::size_t index) const;
  NpyHeader read_header(const Stream& stream, const std::string& where) const;

  std::unique_ptr<zip, CloseArchive> archive_;
  std::uint64_t archive_size_;
  std::string where_;
  std::vector<std::string> keys_;
};

}  // namespace detent::data
