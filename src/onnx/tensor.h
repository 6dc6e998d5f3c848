// Tensors whose elements stay where they are: in the mapped model file, in memory, or in a function that makes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/folder.h"
#include "onnx/wire.h"

namespace detent::onnx {

/// Receives bytes in order.
using Sink = std::function<void(std::span<const std::byte>)>;

/// The elements of a tensor, little-endian and row-major as in raw_data. Cheap to copy: storage is shared.
class TensorData {
 public:
  using Producer = std::function<void(const Sink&)>;

  TensorData() = default;
  /// Elements inside a mapped file. Offsets need not be aligned.
  static TensorData mapped(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes);
  static TensorData owned(std::vector<std::byte> bytes);
  template <class T>
  static TensorData of(std::span<const T> values) {
    const auto bytes = std::as_bytes(values);
    return owned({bytes.begin(), bytes.end()});
  }
  /// Elements that are computed when they are written: `produce` passes exactly `size` bytes to its sink each time.
  static TensorData produced(std::uint64_t size, Producer produce);

  std::uint64_t size() const noexcept { return size_; }
  /// The mapped file that holds the elements, or null.
  const std::shared_ptr<const MappedFile>& file() const noexcept { return file_; }
  bool is_produced() const noexcept { return produce_ != nullptr; }
  /// The same for copies of one another, and for elements at the same place in a file.
  const void* identity() const noexcept { return produce_ ? static_cast<const void*>(produce_.get()) : bytes_.data(); }
  /// The elements in place. Throws internal for produced data.
  std::span<const std::byte> bytes() const;
  /// Passes all bytes to the sink in pieces of at most 4 MiB; pages of mapped files are given back behind it.
  void write_to(const Sink& sink) const;

 private:
  std::uint64_t size_ = 0;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const std::vector<std::byte>> owned_;
  std::shared_ptr<const Producer> produce_;
};

/// A TensorProto. For element types without a raw form (string) and types this version does not know, `data` is empty
/// and `raw` carries the tensor.
struct Tensor {
  std::string name;
  DataType type = DataType::undefined;
  std::vector<std::int64_t> dims;
  TensorData data;
  Wire raw;                  // the message as read; empty for tensors made by detent
  bool is_external = false;  // `raw` refers to an external data file

  /// Product of dims; reading and making tensors both check that it fits.
  std::int64_t count() const;
};

class ExternalFiles;

/// Reads a TensorProto. `file` is the mapped file that `raw` lies in (null for a tensor built in memory); external data
/// are opened through `external`. `where` names the tensor's place for messages. Throws bad_input when sizes, types or
/// locations do not agree with what is there.
Tensor read_tensor(const Wire& raw, const std::shared_ptr<const MappedFile>& file, ExternalFiles& external,
                   const std::string& where);

/// A tensor of our own.
template <class T>
Tensor make_tensor(std::string name, DataType type, std::vector<std::int64_t> dims, std::span<const T> values) {
  return {std::move(name), type, std::move(dims), TensorData::of(values), {}, false};
}

/// Calls `fn(values, first_index)` over a float32 tensor in aligned pieces of at most 64 Ki elements, in order; pages
/// of mapped files are given back behind it.
void for_each_float(const TensorData& data, const std::function<void(std::span<const float>, std::int64_t)>& fn);

/// All elements of a small tensor as int64 (from any integer type) or as double (from any float type); throws bad_input
/// for other types.
std::vector<std::int64_t> to_int64s(const Tensor& tensor);
std::vector<double> to_doubles(const Tensor& tensor);

// A tensor's external data: where it lies, and opening it within the model's boundary. Answers CVE-2022-25882,
// CVE-2024-27318, CVE-2026-27489, -34445, -34446 and -34447 (SECURITY.md).

/// Opens external data files, each once however many tensors lie in it.
class ExternalFiles {
 public:
  explicit ExternalFiles(const std::filesystem::path& model_path) : boundary_(model_path.parent_path(), model_path) {}
  std::shared_ptr<const MappedFile> open(const std::string& location, const std::string& where);

 private:
  Boundary boundary_;
  std::unordered_map<std::string, std::shared_ptr<const MappedFile>> files_;  // by location
};

}  // namespace detent::onnx
