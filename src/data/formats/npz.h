// The .npz format: a zip archive of .npy members, stored or deflated. Nothing is ever unpacked to disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/formats/npy.h"

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
