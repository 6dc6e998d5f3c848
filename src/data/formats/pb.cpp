#include "data/formats/pb.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "data/buffer.h"
#include "data/formats/text.h"
#include "onnx/external_data.h"
#include "onnx/tensor.h"
#include "onnx/wire.h"

namespace detent::data {
namespace {

constexpr const char* kHint = "write it as one ONNX TensorProto with its data inside";

onnx::Tensor read_tensor(std::string_view message, const std::shared_ptr<const MappedFile>& file,
                         const std::filesystem::path& path, const std::string& where) {
  try {
    onnx::ExternalFiles beside(path);
    return onnx::read_tensor(onnx::Wire(message, file), file, beside, where);
  } catch (const Error& e) {
    // A name inside the file may hold anything, and the reader speaks of models in its hints.
    if (e.kind() != ErrorKind::bad_input) throw;
    const std::string text = printable(e.what());
    throw bad_input(text.starts_with(where) ? text : fmt::format("{}: {}", where, text), kHint);
  }
}

PbTensor read(std::string_view message, const std::shared_ptr<const MappedFile>& file,
              const std::filesystem::path& path, const std::string& where) {
  onnx::Tensor tensor = read_tensor(message, file, path, where);
  if (tensor.is_external) throw bad_input(fmt::format("{}: the tensor keeps its data in another file", where), kHint);
  if (onnx::bits_of(tensor.type) < 8) {
    throw bad_input(
        fmt::format("{}: not a tensor of numbers (data_type {})", where, static_cast<std::int32_t>(tensor.type)),
        kHint);
  }
  Array array{tensor.type, std::move(tensor.dims), tensor.data.bytes(), file};
  if (file == nullptr || !file->contains(array.bytes)) {
    array.owner = std::make_shared<const onnx::TensorData>(tensor.data);
  }
  return {std::move(tensor.name), aligned(std::move(array), where)};
}

}  // namespace

PbTensor read_pb(const std::shared_ptr<const MappedFile>& file) {
  return read(as_text(file->bytes()), file, file->path(), quoted(file->path()));
}

PbTensor parse_pb(std::string_view message, const std::string& where) { return read(message, nullptr, {}, where); }

}  // namespace detent::data
