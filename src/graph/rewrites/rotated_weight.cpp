#include "graph/rewrites/rotated_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/parallel.h"
#include "base/working_file.h"

namespace detent::graph {
namespace {

constexpr std::size_t kStripe = std::size_t{1} << 18;  // values

class Rotating {
 public:
  Rotating(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
           const OrthogonalRotation& mix, const std::filesystem::path& path)
      : weight_(weight),
        rows_(static_cast<std::size_t>(weight.dims[0])),
        columns_(static_cast<std::size_t>(weight.dims[1])),
        part_(part),
        length_(part.axis == 0 ? rows_ : columns_),
        gains_(gains),
        mix_(mix),
        path_(path),
        fd_(create_working_file(path)) {}

  void run(std::size_t threads) {
    const auto others = part_.axis == 0 ? columns_ : rows_;
    const auto width = std::clamp<std::size_t>(kStripe / length_, 1, others);
    parallel_for((others + width - 1) / width, threads, [&](std::size_t stripe) {
      const auto first = stripe * width;
      turn(first, std::min(width, others - first));
    });
    if (const auto& file = weight_.data.file()) file->release(weight_.data.bytes());
  }

 private:
  // Columns, or rows that become columns for as long as it takes.
  void turn(std::size_t first, std::size_t count) const {
    std::vector<float> values(length_ * count), line;
    if (part_.axis == 0) {
      for (std::size_t r = 0; r < rows_; ++r) read(r * columns_ + first, std::span(values).subspan(r * count, count));
    } else {
      line.resize(columns_);
      for (std::size_t r = 0; r < count; ++r) {
        read((first + r) * columns_, line);
        for (std::size_t c = 0; c < columns_; ++c) values[c * count + r] = line[c];
      }
    }
    for (std::size_t at = 0; at < gains_.size(); ++at) {
      for (std::size_t c = 0; c < count; ++c) values[at * count + c] *= gains_[at];
    }
    for (auto at = part_.first; at < part_.last; at += mix_.size())
      mix_.apply(std::span(values).subspan(at * count, mix_.size() * count), count);
    if (part_.axis == 0) {
      for (std::size_t r = 0; r < rows_; ++r) write(r * columns_ + first, std::span(values).subspan(r * count, count));
      return;
    }
    for (std::size_t r = 0; r < count; ++r) {
      for (std::size_t c = 0; c < columns_; ++c) line[c] = values[c * count + r];
      write((first + r) * columns_, line);
    }
  }

  void read(std::size_t at, std::span<float> values) const {
    std::memcpy(values.data(), weight_.data.bytes().data() + at * sizeof(float), values.size_bytes());
  }

  void write(std::size_t at, std::span<const float> values) const {
    write_at(fd_.get(), std::as_bytes(values), at * sizeof(float), path_);
  }

  const onnx::Tensor& weight_;
  std::size_t rows_, columns_;
  RotatedPart part_;
  std::size_t length_;  // along the axis
  std::span<const float> gains_;
  const OrthogonalRotation& mix_;
  const std::filesystem::path& path_;
  UniqueFd fd_;
};

}  // namespace

onnx::TensorData rotated(const onnx::Tensor& weight, const RotatedPart& part, std::span<const float> gains,
                         const OrthogonalRotation& mix, const std::filesystem::path& path, std::size_t threads) {
  Rotating(weight, part, gains, mix, path).run(threads);
  const auto file = MappedFile::open(path, "working file");
  return onnx::TensorData::mapped(file, file->bytes());
}

}  // namespace detent::graph
