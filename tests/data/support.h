// Writes the files that the tests of src/data read, byte by byte, and shortens their assertions.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <zip.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "detent/error.h"

namespace detent::data::test {

namespace fs = std::filesystem;
using onnx::DataType;
using Dims = std::vector<std::int64_t>;

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
  return out;
}

/// A .npy file around the text of a header, padded as numpy pads it.
inline std::string npy_with_header(std::string header, const std::string& data, int version = 1) {
  const std::size_t prefix = version == 1 ? 10 : 12;
  header += std::string(63 - (prefix + header.size()) % 64, ' ') + '\n';
  return "\x93NUMPY" + little_endian(static_cast<std::uint64_t>(version), 2) +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}

inline std::string npy_header(std::string_view descr, const Dims& shape, bool fortran = false) {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}{}), }}", descr, fortran ? "True" : "False",
                     fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

inline std::string npy(std::string_view descr, const Dims& shape, const std::string& data, bool fortran = false) {
  return npy_with_header(npy_header(descr, shape, fortran), data);
}

/// A float32 .npy of this shape that counts up from `first`.
inline std::string counting(const Dims& shape, float first = 0) {
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return npy("<f4", shape, raw(values));
}

inline void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

using Members = std::vector<std::pair<std::string, std::string>>;

inline void write_zip(const fs::path& path, const Members& members, int method = ZIP_CM_STORE) {
  int code = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code);
  ASSERT_NE(archive, nullptr);
  for (const auto& [name, bytes] : members) {
    zip_source_t* source = zip_source_buffer(archive, bytes.data(), bytes.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, ZIP_FL_ENC_UTF_8);
    ASSERT_GE(index, 0);
    ASSERT_EQ(zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), method, 0), 0);
  }
  ASSERT_EQ(zip_close(archive), 0);
}

/// The error that `act` must throw; `parts` must stand in its message or hint, and both must be single lines.
template <typename Act>
void expect_error(Act act, const std::vector<std::string>& parts, ErrorKind kind = ErrorKind::bad_input) {
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

template <typename T = float>
std::vector<T> values(const Array& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  return out;
}

inline std::vector<Sample> all(SampleSource& source) {
  std::vector<Sample> samples;
  while (std::optional<Sample> sample = source.next()) samples.push_back(std::move(*sample));
  return samples;
}

inline std::vector<std::string> origins(const std::vector<Sample>& samples) {
  std::vector<std::string> out;
  for (const Sample& sample : samples) out.push_back(sample.origin);
  return out;
}

/// A test with a directory of its own, and shorthands to open it.
class DataTest : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return temp_.path() / name; }
  void put(const std::string& name, const std::string& bytes) const { write(at(name), bytes); }
  std::unique_ptr<SampleSource> open(std::vector<InputSpec> inputs, SourceOptions options = {}) const {
    return open_samples(temp_.path(), std::move(inputs), options);
  }
  std::vector<Sample> load(std::vector<InputSpec> inputs, SourceOptions options = {}) const {
    const auto source = open(std::move(inputs), options);
    return all(*source);
  }
  void expect_bad(const std::vector<InputSpec>& inputs, const std::vector<std::string>& parts,
                  SourceOptions options = {}) const {
    expect_error([&] { load(inputs, options); }, parts);
  }

 private:
  TempDir temp_;
};

inline InputSpec input(std::string name, Dims shape, DataType type = DataType::float32) {
  return {std::move(name), type, std::move(shape)};
}

}  // namespace detent::data::test
