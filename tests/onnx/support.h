// Builds ONNX messages field by field, so that tests can also make what no writer would.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <protozero/pbf_writer.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "detent/error.h"
#include "onnx/model.h"
#include "onnx/write.h"

namespace detent::onnx::test {

namespace fs = std::filesystem;

/// A message under construction. Fields stand in the order of the calls.
struct Msg {
  std::string bytes;

  Msg& varint(std::uint32_t number, std::int64_t value) {
    protozero::pbf_writer(bytes).add_int64(number, value);
    return *this;
  }
  Msg& text(std::uint32_t number, std::string_view value) {
    protozero::pbf_writer(bytes).add_bytes(number, value.data(), value.size());
    return *this;
  }
  Msg& fixed32(std::uint32_t number, float value) {
    protozero::pbf_writer(bytes).add_float(number, value);
    return *this;
  }
  Msg& fixed64(std::uint32_t number, double value) {
    protozero::pbf_writer(bytes).add_double(number, value);
    return *this;
  }
  Msg& packed(std::uint32_t number, const std::vector<std::int64_t>& values) {
    std::string run;
    for (const auto v : values) protozero::add_varint_to_buffer(&run, static_cast<std::uint64_t>(v));
    return text(number, run);
  }
  Msg& sub(std::uint32_t number, const Msg& message) { return text(number, message.bytes); }
};

template <class T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// dims, data_type and name of a TensorProto; data are for the test to add.
inline Msg tensor_head(const std::string& name, DataType type, const std::vector<std::int64_t>& dims) {
  Msg m;
  for (const auto d : dims) m.varint(1, d);
  m.varint(2, static_cast<std::int32_t>(type));
  return m.text(8, name);
}

inline Msg entry(std::string_view key, std::string_view value) { return Msg().text(1, key).text(2, value); }

inline Msg attribute_head(std::string_view name) { return Msg().text(1, name); }

inline Msg node(const std::string& op_type, const std::vector<std::string>& inputs,
                const std::vector<std::string>& outputs, const std::vector<Msg>& attributes = {}) {
  Msg m;
  for (const auto& name : inputs) m.text(1, name);
  for (const auto& name : outputs) m.text(2, name);
  m.text(4, op_type);
  for (const auto& a : attributes) m.sub(5, a);
  return m;
}

inline Msg value_info(const std::string& name, DataType type = DataType::float32,
                      const std::vector<std::int64_t>& dims = {2}) {
  return {std::string(make_value_info(name, type,
                                      [&] {
                                        std::vector<Dim> shape;
                                        for (const auto d : dims) shape.push_back({d, ""});
                                        return shape;
                                      }())
                          .raw.view())};
}

/// ir_version 8 and opset 17 around a graph.
inline Msg model_of(const Msg& graph) {
  return Msg().varint(1, 8).sub(7, graph).sub(8, Msg().text(1, "").varint(2, 17));
}

/// A graph x -> Relu -> y with the given initializers.
inline Msg graph_with(const std::vector<Msg>& initializers) {
  Msg g;
  g.sub(1, node("Relu", {"x"}, {"y"})).text(2, "g");
  for (const auto& t : initializers) g.sub(5, t);
  return g.sub(11, value_info("x")).sub(12, value_info("y"));
}

/// The error that `act` must throw; `part` must stand in its message, which must be one printable line.
inline void expect_error(const std::function<void()>& act, const std::string& part = "",
                         ErrorKind kind = ErrorKind::bad_input) {
  try {
    act();
    ADD_FAILURE() << "no error (expected: " << part << ")";
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << text;
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    for (const char c : text) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20) << text;
  }
}

inline void write_file(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::vector<T> elements(const Tensor& tensor) {
  const auto bytes = tensor.data.bytes();
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// A test with a directory of its own.
class ModelTest : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return temp_.path() / name; }
  Model read(std::string_view bytes) const {
    write_file(at("model.onnx"), bytes);
    return read_model(at("model.onnx"));
  }
  Model read(const Msg& message) const { return read(message.bytes); }
  /// The one initializer of a model that holds nothing else.
  Tensor read_initializer(const Msg& tensor) const {
    return read(model_of(graph_with({tensor}))).graph.initializers.at(0);
  }
  void expect_bad(std::string_view bytes, const std::string& part = "") const {
    expect_error([&] { read(bytes); }, part);
  }
  void expect_bad_initializer(const Msg& tensor, const std::string& part) const {
    expect_error([&] { read_initializer(tensor); }, part);
  }

 private:
  TempDir temp_;
};

}  // namespace detent::onnx::test
