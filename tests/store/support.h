// Records with contents that tell what they are, and a spool in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "detent/error.h"
#include "store/spool.h"

namespace detent::store::test {

namespace fs = std::filesystem;
using data::Array;
using onnx::DataType;
using Shape = std::vector<std::int64_t>;

inline Array array_of(DataType type, Shape shape, std::uint64_t seed) {
  const std::size_t size = *onnx::byte_count(type, *onnx::element_count(shape));
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(bytes->data() + i, &word, std::min<std::size_t>(8, size - i));
  }
  Array array{type, std::move(shape), *bytes, bytes};
  return array;
}

inline Array bytes_of(std::size_t size, std::uint64_t seed) {
  return array_of(DataType::uint8, {static_cast<std::int64_t>(size)}, seed);
}

/// Of about `size` bytes, in two arrays.
inline Record record_of(std::size_t size, std::uint64_t seed) {
  return {bytes_of(size / 3, seed), bytes_of(size - size / 3, seed + 1)};
}

inline ::testing::AssertionResult same(const std::optional<Record>& got, const Record& expected) {
  if (!got) return ::testing::AssertionFailure() << "no record";
  if (got->size() != expected.size()) return ::testing::AssertionFailure() << got->size() << " arrays";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Array& a = (*got)[i];
    const Array& b = expected[i];
    if (a.type != b.type || a.shape != b.shape)
      return ::testing::AssertionFailure() << "array " << i << ": other shape";
    if (a.bytes.size() != b.bytes.size() ||
        (!b.bytes.empty() && std::memcmp(a.bytes.data(), b.bytes.data(), b.bytes.size()) != 0)) {
      return ::testing::AssertionFailure() << "array " << i << ": other bytes";
    }
  }
  return ::testing::AssertionSuccess();
}

/// The error that `act` must throw; `parts` must stand in its message or hint.
template <typename Act>
void expect_error(Act act, ErrorKind kind, const std::vector<std::string>& parts) {
  try {
    act();
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    const std::string text = std::string(e.what()) + " | " + e.hint();
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

inline std::vector<DiskAccess> all_accesses() { return {DiskAccess::buffered, DiskAccess::direct, DiskAccess::uring}; }
inline const char* text_of(DiskAccess access) {
  return access == DiskAccess::buffered ? "buffered" : access == DiskAccess::direct ? "direct" : "uring";
}

class SpoolTest : public ::testing::Test {
 protected:
  SpoolOptions options(Residency residency = Residency::disk, DiskAccess access = DiskAccess::buffered) const {
    SpoolOptions out;
    out.directory = temp_.path();
    out.residency = residency;
    out.access = access;
    out.buffer_bytes = std::uint64_t{4} << 20;
    return out;
  }
  const fs::path& directory() const { return temp_.path(); }
  fs::path lane_path(const std::string& name) const { return temp_.path() / (name + ".lane"); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(temp_.path()), fs::directory_iterator()));
  }
  /// Whether this access works here; tests of io_uring are left out where the system refuses it.
  bool works(DiskAccess access) const {
    try {
      const TempDir own(temp_.path());
      SpoolOptions with = options(Residency::disk, access);
      with.directory = own.path();
      Spool spool(with);
      spool.put(spool.open("try"), 0, record_of(10, 1));
      spool.sync();
      return true;
    } catch (const Error&) {
      return false;
    }
  }

 private:
  TempDir temp_;
};

}  // namespace detent::store::test
