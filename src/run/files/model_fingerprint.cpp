#include "run/files/model_fingerprint.h"

#include <algorithm>

namespace detent::run {
namespace {

void add(Hasher& hasher, const MappedFile& file, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  hasher.add(std::uint64_t{bytes.size()});
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    hasher.add(piece);
    file.release(piece);
  }
}

}  // namespace

ModelFingerprint::ModelFingerprint(const onnx::Model& model) {
  Hasher hasher;
  add(hasher, *model.file, model.file->bytes());
  sum_ = hasher.result();
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) left_.emplace(tensor.name, tensor.data);
  }
}

void ModelFingerprint::take(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto found = left_.find(name);
    if (found == left_.end()) continue;
    Hasher hasher;
    hasher.add(name);
    add(hasher, *found->second.file(), found->second.bytes());
    sum_ += hasher.result();
    left_.erase(found);
  }
}

Fingerprint ModelFingerprint::finish() {
  while (!left_.empty()) take({left_.begin()->first});
  return sum_;
}

Fingerprint fingerprint_of(const onnx::Model& model) { return ModelFingerprint(model).finish(); }

Fingerprint fingerprint_of(const data::Sample& sample) {
  Hasher hasher;
  for (const auto& array : sample.inputs) {
    hasher.add(static_cast<std::uint64_t>(array.type));
    hasher.add(std::uint64_t{array.shape.size()});
    for (const auto d : array.shape) hasher.add(static_cast<std::uint64_t>(d));
    hasher.add(array.bytes);
  }
  return hasher.result();
}

Fingerprint fingerprint_of(data::SampleSource& source) {
  Fingerprint all;
  while (const auto sample = source.next()) all += fingerprint_of(*sample);
  return all;
}

}  // namespace detent::run
