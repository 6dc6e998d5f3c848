#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "onnx/half.h"
#include "onnx/nibbles.h"
#include "onnx/tensor.h"

namespace detent::onnx {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;

// Gives back what has been read of a mapped tensor, from its start: the kernel maps pages around each fault, also
// behind it, so releasing only the last piece would leave some of every piece resident.
void release_up_to(const std::shared_ptr<const MappedFile>& file, std::span<const std::byte> bytes, std::size_t end) {
  if (file && (end % kPiece == 0 || end == bytes.size())) file->release(bytes.first(end));
}

template <class From, class To>
std::vector<To> convert(const Tensor& tensor) {
  const auto bytes = tensor.data.bytes();
  std::vector<To> out(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(value);
  }
  return out;
}

std::vector<std::int64_t> unpacked_nibbles(const Tensor& tensor) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(tensor.count()));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = nibble_at(tensor.data.bytes(), i, tensor.type == DataType::int4);
  return out;
}

}  // namespace

TensorData TensorData::mapped(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes) {
  TensorData data;
  data.size_ = bytes.size();
  data.bytes_ = bytes;
  data.file_ = std::move(file);
  return data;
}

TensorData TensorData::owned(std::vector<std::byte> bytes) {
  TensorData data;
  data.owned_ = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  data.bytes_ = *data.owned_;
  data.size_ = data.bytes_.size();
  return data;
}

TensorData TensorData::produced(std::uint64_t size, Producer produce) {
  TensorData data;
  data.size_ = size;
  data.produce_ = std::make_shared<const Producer>(std::move(produce));
  return data;
}

std::span<const std::byte> TensorData::bytes() const {
  if (produce_) throw internal_error("the elements of a produced tensor were asked for in place");
  return bytes_;
}

void TensorData::write_to(const Sink& sink) const {
  if (produce_) {
    (*produce_)(sink);
    return;
  }
  for (std::size_t at = 0; at < bytes_.size(); at += kPiece) {
    const auto piece = bytes_.subspan(at, std::min(kPiece, bytes_.size() - at));
    sink(piece);
    release_up_to(file_, bytes_, at + piece.size());
  }
}

std::int64_t Tensor::count() const { return element_count(dims).value_or(0); }

void for_each_float(const TensorData& data, const std::function<void(std::span<const float>, std::int64_t)>& fn) {
  constexpr std::size_t kPart = (std::size_t{64} << 10) * sizeof(float);
  const auto bytes = data.bytes();
  const bool aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0;
  std::vector<float> copy(aligned ? 0 : std::min(kPart, bytes.size()) / sizeof(float));
  for (std::size_t at = 0; at < bytes.size(); at += kPart) {
    const auto part = bytes.subspan(at, std::min(kPart, bytes.size() - at));
    if (!aligned) std::memcpy(copy.data(), part.data(), part.size());
    const auto* values = aligned ? reinterpret_cast<const float*>(part.data()) : copy.data();
    fn({values, part.size() / sizeof(float)}, static_cast<std::int64_t>(at / sizeof(float)));
    release_up_to(data.file(), bytes, at + part.size());
  }
}

std::vector<std::int64_t> to_int64s(const Tensor& tensor) {
  switch (tensor.type) {
    case DataType::int64: return convert<std::int64_t, std::int64_t>(tensor);
    case DataType::int32: return convert<std::int32_t, std::int64_t>(tensor);
    case DataType::int16: return convert<std::int16_t, std::int64_t>(tensor);
    case DataType::int8: return convert<std::int8_t, std::int64_t>(tensor);
    case DataType::uint32: return convert<std::uint32_t, std::int64_t>(tensor);
    case DataType::uint16: return convert<std::uint16_t, std::int64_t>(tensor);
    case DataType::uint8: return convert<std::uint8_t, std::int64_t>(tensor);
    case DataType::boolean: return convert<std::uint8_t, std::int64_t>(tensor);
    case DataType::int4:
    case DataType::uint4: return unpacked_nibbles(tensor);
    default: throw bad_input("tensor '" + tensor.name + "' was expected to hold integers");
  }
}

std::vector<double> to_doubles(const Tensor& tensor) {
  switch (tensor.type) {
    case DataType::float32: return convert<float, double>(tensor);
    case DataType::float64: return convert<double, double>(tensor);
    case DataType::float16: {
      std::vector<double> out;
      for (const auto h : convert<std::uint16_t, std::uint16_t>(tensor)) out.push_back(from_float16(h));
      return out;
    }
    case DataType::bfloat16: {
      std::vector<double> out;
      for (const auto b : convert<std::uint16_t, std::uint16_t>(tensor)) out.push_back(from_bfloat16(b));
      return out;
    }
    default: throw bad_input("tensor '" + tensor.name + "' was expected to hold floating-point numbers");
  }
}

}  // namespace detent::onnx
