#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cuda/launch.h"
#include "cuda/layer_pass.h"
#include "cuda/patch_shape.h"
#include "solve/layers/device_memory.h"

namespace detent::cuda {
namespace {

using solve::LayerGeometry;
using solve::LayerKind;
using solve::Patches;
using solve::RowRange;
using solve::Shape;

/// Products want no positions gathered: inputs are [positions, fan_in] as they come, outputs [positions, rows]. Those
/// of convolutions are gathered into [groups · fan_in, positions], outputs are [rows, positions].
class PatchPass final : public LayerPass {
 public:
  PatchPass(Device& device, const LayerGeometry& geometry, RowRange rows, DevicePrecision precision)
      : device_(device.current()),
        geometry_(geometry),
        rows_(rows),
        narrow_(solve::passes_in_bfloat16(precision, geometry, rows.count())),
        precision_(precision == DevicePrecision::bfloat16 && !narrow_ ? DevicePrecision::tf32 : precision),
        product_(geometry.kind == LayerKind::product),
        fan_in_(static_cast<std::size_t>(geometry.fan_in())),
        group_rows_(static_cast<std::size_t>(geometry.outputs / geometry.groups)),
        groups_(std::max<std::size_t>(rows.count() / group_rows_, 1)),
        capacity_(solve::device_piece_positions(geometry)) {}

  std::size_t pieces(const Shape& shape) const override {
    const std::size_t positions = Patches(geometry_, shape).positions();
    return product_ ? 1 : (positions + capacity_ - 1) / capacity_;
  }

  void begin(const Shape& shape, const float* input, const float* target, std::size_t piece) override {
    const std::size_t all = Patches(geometry_, shape).positions();
    const std::size_t first = product_ ? 0 : piece * capacity_;
    positions_ = product_ ? all : std::min(capacity_, all - first);
    reserve(y_, rows_.count() * positions_);
    if (product_) {
      input_ = input;
      if (narrow_) to_narrow(narrow_input_, input, positions_ * fan_in_);
      place_ = {y_.data(),
                target + rows_.first,
                1,
                rows_.count(),
                positions_,
                0,
                1,
                rows_.count(),
                0,
                1,
                static_cast<std::size_t>(geometry_.outputs)};
      return;
    }
    const PatchShape patch = patch_shape(geometry_, shape);
    const std::size_t patch_rows = groups_ * fan_in_;
    reserve(tile_, patch_rows * positions_);
    reserve(targets_, rows_.count() * positions_);
    const std::size_t first_row = rows_.first / group_rows_ * fan_in_;
    launch(device_.stream(),
           GatherKernel{patch, input, tile_.data(), first_row, patch_rows, first, positions_, positions_, 0},
           blocks_for(patch_rows * positions_));
    launch(device_.stream(),
           GatherOutputsKernel{patch, target, targets_.data(), rows_.first, rows_.count(), first, positions_,
                               positions_, 0},
           blocks_for(rows_.count() * positions_));
    input_ = tile_.data();
    place_ = {y_.data(), targets_.data(), 1, rows_.count(), positions_, 0, positions_, 1, 0, positions_, 1};
  }

  void forward(const float* filter) override {
    auto& p = products();
    if (narrow_) {
      to_narrow(narrow_filter_, filter, rows_.count() * fan_in_);
      p.forward.run(narrow_input_.data(), narrow_filter_.data(), y_.data());
    } else if (product_) {
      p.forward.run(input_, filter, y_.data());
    } else {
      p.forward.run(filter, input_, y_.data());
    }
  }

  const OutputPlace& outputs() const override { return place_; }

  void backward(float* filter_gradient, bool add) override {
    const float beta = add ? 1.0F : 0.0F;
    if (narrow_) {
      to_narrow(narrow_y_, y_.data(), rows_.count() * positions_);
      products().backward.run(narrow_y_.data(), narrow_input_.data(), filter_gradient, 1, beta);
    } else {
      products().backward.run(y_.data(), input_, filter_gradient, 1, beta);
    }
  }

  FilterOrder order() const override { return {group_rows_, 1, group_rows_ * fan_in_, fan_in_, 1, 1}; }
  bool is_matrix() const override { return true; }

 private:
  struct Products {
    Matmul forward, backward;
  };

  template <class T>
  void reserve(DeviceArray<T>& array, std::size_t count) {
    if (array.size() >= count) return;
    array = {};
    array = {device_.memory(), count, "fine-tuning a layer in mini-batches"};
  }

  /// What products take in bfloat16; sums, outputs and gradients are float32.
  void to_narrow(DeviceArray<Bfloat16>& to, const float* from, std::size_t count) {
    reserve(to, count);
    launch(device_.stream(), ToBfloat16{from, to.data(), count}, blocks_for(count));
  }

  // Of as many positions as the piece has: whole pieces are of the same size, and so are the last ones of samples of
  // the same shape.
  Products& products() {
    auto found = products_.find(positions_);
    if (found != products_.end()) return found->second;
    constexpr std::size_t kShapes = 64;
    if (products_.size() == kShapes) products_.clear();
    return products_
        .emplace(positions_,
                 Products{Matmul(device_, forward_shape(), precision_), Matmul(device_, backward_shape(), precision_)})
        .first->second;
  }

  Product forward_shape() const {
    const auto rows = static_cast<std::int64_t>(rows_.count() / groups_), k = static_cast<std::int64_t>(fan_in_);
    const auto positions = static_cast<std::int64_t>(positions_);
    Product p;
    p.k = k;
    p.batch = static_cast<std::int64_t>(groups_);
    if (product_) {  // [positions, k] · [rows, k]ᵀ
      p.transpose_b = true;
      p.m = positions;
      p.n = p.ldc = rows;
      p.lda = p.ldb = k;
    } else {  // [rows, k] · [k, positions]
      p.m = rows;
      p.n = p.ldb = p.ldc = positions;
      p.lda = k;
    }
    set_strides(p, product_ ? 0 : rows * k, product_ ? 0 : k * positions, product_ ? 0 : rows * positions);
    return p;
  }

  Product backward_shape() const {
    const auto rows = static_cast<std::int64_t>(rows_.count() / groups_), k = static_cast<std::int64_t>(fan_in_);
    const auto positions = static_cast<std::int64_t>(positions_);
    Product p;
    p.m = rows;
    p.n = p.ldc = k;
    p.k = positions;
    p.batch = static_cast<std::int64_t>(groups_);
    if (product_) {  // [positions, rows]ᵀ · [positions, k]
      p.transpose_a = true;
      p.lda = rows;
      p.ldb = k;
    } else {  // [rows, positions] · [k, positions]ᵀ
      p.transpose_b = true;
      p.lda = p.ldb = positions;
    }
    set_strides(p, product_ ? 0 : rows * positions, product_ ? 0 : k * positions, product_ ? 0 : rows * k);
    return p;
  }

  static void set_strides(Product& p, std::int64_t a, std::int64_t b, std::int64_t c) {
    p.stride_a = a;
    p.stride_b = b;
    p.stride_c = c;
  }

  Device& device_;
  LayerGeometry geometry_;
  RowRange rows_;
  bool narrow_;
  DevicePrecision precision_;
  bool product_;
  std::size_t fan_in_, group_rows_, groups_, capacity_;
  std::size_t positions_ = 0;  // of the piece
  const float* input_ = nullptr;
  DeviceArray<float> tile_, targets_, y_;
  DeviceArray<Bfloat16> narrow_input_, narrow_filter_, narrow_y_;
  OutputPlace place_{};
  std::map<std::size_t, Products> products_;
};

}  // namespace

std::unique_ptr<LayerPass> patch_pass(Device& device, const LayerGeometry& geometry, RowRange rows,
                                      DevicePrecision precision) {
  return std::make_unique<PatchPass>(device, geometry, rows, precision);
}

PartOfLayer part_of(const LayerGeometry& geometry, RowRange rows) {
  const auto group_rows = static_cast<std::size_t>(geometry.outputs / geometry.groups);
  const std::int64_t group_inputs = geometry.inputs / geometry.groups;
  PartOfLayer part{geometry, rows.first / group_rows * static_cast<std::size_t>(group_inputs)};
  part.geometry.groups = static_cast<std::int64_t>(std::max<std::size_t>(rows.count() / group_rows, 1));
  part.geometry.outputs = static_cast<std::int64_t>(rows.count());
  part.geometry.inputs = part.geometry.groups * group_inputs;
  return part;
}

}  // namespace detent::cuda
