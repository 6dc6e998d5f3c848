// The real runtime for tests, and models run through it.
#pragma once

#include <cstdlib>
#include <optional>
#include <random>

#include "exec/emit.h"
#include "exec/session.h"
#include "graph/support.h"

namespace detent::exec::test {

using namespace graph::test;  // NOLINT: the makers of small models
using data::Array;
using graph::ValueTypes;

/// Where it is: the variable's choice, else beside the tests' own folder.
inline std::optional<std::filesystem::path> runtime_library() {
  const char* variable = std::getenv("DETENT_ONNXRUNTIME");
  if (variable != nullptr && *variable != '\0') return std::nullopt;
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return here.parent_path() / "libonnxruntime.so";
}

inline Runtime& runtime() {
  static Runtime loaded(runtime_library());
  return loaded;
}

template <class T>
Array array_of(DataType type, const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  auto owner = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  return {type, shape, *owner, owner};
}

inline Array random_floats(const std::vector<std::int64_t>& shape, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(onnx::element_count(shape).value()));
  for (float& v : values) v = normal(generator);
  return array_of(DataType::float32, shape, values);
}

inline Array boolean(bool on) { return array_of(DataType::boolean, {}, std::vector<std::uint8_t>{on}); }

inline std::string bytes_of(const Array& array) { return std::string(as_text(array.bytes)); }
inline Floats floats_of(const Array& array) {
  Floats out(array.bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  return out;
}

inline std::vector<Array> run(const Model& model, const std::vector<Array>& inputs, const EmitOptions& options = {},
                              data::TapReceiver* receiver = nullptr, const SessionOptions& session_options = {}) {
  Session session(runtime(), emit(model, options), "the model", session_options);
  return session.run(inputs, "the sample", receiver);
}

inline EmitOptions tap(Names names) { return {std::move(names), {}, {}}; }
inline EmitOptions give(Names names) { return {{}, std::move(names), {}}; }

/// Keeps what each tap was given.
struct Recorder : data::TapReceiver {
  std::vector<std::pair<std::size_t, Array>> seen;
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    auto owner = std::make_shared<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end());
    seen.emplace_back(tap, Array{tensor.type, {tensor.shape.begin(), tensor.shape.end()}, *owner, owner});
  }
};

}  // namespace detent::exec::test
