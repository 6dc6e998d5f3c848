#include "cuda/layer_pass.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "cuda/launch.h"
#include "solve/layers/layer_solver.h"

namespace detent::cuda {

// The library pads both ends of an axis by as much as the beginning. It makes no difference where as many outputs come
// out: which value meets which follows from the beginning alone.
bool Convolution::supports(const solve::LayerGeometry& g, const std::vector<std::int64_t>& input) {
  if (g.kind == solve::LayerKind::product) return false;
  const auto output = g.output_shape(input);
  const bool transposed = g.kind == solve::LayerKind::transposed;
  for (std::size_t a = 0; a < g.kernel.size(); ++a) {
    const std::int64_t spread = transposed ? output[a + 2] : input[a + 2];  // what a plain convolution reads
    const std::int64_t steps = transposed ? input[a + 2] : output[a + 2];
    const std::int64_t reach = g.dilations[a] * (g.kernel[a] - 1) + 1;
    const std::int64_t room = spread + 2 * g.pads_begin[a] - reach;
    if (g.pads_begin[a] < 0 || room < 0 || room / g.strides[a] + 1 != steps) return false;
  }
  return true;
}

namespace {

std::int32_t checked_int32(std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max())
    throw resource_error("a layer's shape is beyond what the GPU's kernels count", "give --device cpu");
  return static_cast<std::int32_t>(value);
}

}  // namespace

PatchShape patch_shape(const solve::LayerGeometry& g, const std::vector<std::int64_t>& input) {
  const auto output = g.output_shape(input);
  const std::size_t axes = g.kernel.size();
  if (axes == 0 || axes > 3) throw internal_error("convolutions have one to three spatial axes");
  PatchShape shape{};
  for (PatchAxis& axis : shape.axes) axis = {1, 1, 1, 1, 1, 0};
  std::int64_t positions = 1, values = 1, kernel = 1;
  for (std::size_t a = 0; a < axes; ++a) {
    shape.axes[3 - axes + a] = {checked_int32(input[a + 2]),   checked_int32(output[a + 2]),
                                checked_int32(g.kernel[a]),    checked_int32(g.strides[a]),
                                checked_int32(g.dilations[a]), static_cast<std::int32_t>(g.pads_begin[a])};
    positions = checked_int32(positions * output[a + 2]);
    values = checked_int32(values * input[a + 2]);
    kernel = checked_int32(kernel * g.kernel[a]);
  }
  shape.transposed = g.kind == solve::LayerKind::transposed ? 1 : 0;
  shape.channels = checked_int32(g.inputs);
  shape.outputs = checked_int32(g.outputs);
  shape.kernel_size = checked_int32(kernel);
  shape.sample_positions = checked_int32(positions);
  shape.input_values = checked_int32(values);
  return shape;
}

namespace {

using solve::LayerGeometry;
using solve::LayerKind;
using solve::product_of;
using solve::RowRange;
using solve::Shape;

class ConvolutionPass final : public LayerPass {
 public:
  ConvolutionPass(Device& device, const LayerGeometry& geometry, RowRange rows, DeviceLayout layout,
                  DevicePrecision precision)
      : device_(device.current()),
        whole_(geometry),
        rows_(rows),
        part_(part_of(geometry, rows)),
        layout_(layout),
        precision_(precision) {}

  std::size_t pieces(const Shape&) const override { return 1; }

  void begin(const Shape& shape, const float* input, const float* target, std::size_t) override {
    const Shape output = whole_.output_shape(shape);
    const auto samples = static_cast<std::size_t>(shape[0]);
    const std::size_t in = product_of({shape.data() + 2, shape.size() - 2});
    const std::size_t out = product_of({output.data() + 2, output.size() - 2});
    const auto channels = static_cast<std::size_t>(whole_.inputs),
               used = static_cast<std::size_t>(part_.geometry.inputs);
    const auto outputs = static_cast<std::size_t>(whole_.outputs);
    const bool last = layout_ == DeviceLayout::nhwc;
    reserve(y_, samples * rows_.count() * out);
    if (last) {
      reserve(input_last_, samples * used * in);
      launch(device_.stream(),
             ChannelsLastKernel{input, input_last_.data(), samples, channels, part_.first_channel, used, in},
             blocks_for(samples * used * in));
      input_ = input_last_.data();
    } else {
      input_ = input + part_.first_channel * in;
    }
    place_ = {y_.data(),      target + rows_.first * out, samples,       rows_.count(), out, rows_.count() * out,
              last ? 1 : out, last ? rows_.count() : 1,   outputs * out, out,           1};
    convolution_ = &convolution_for(shape);
  }

  void forward(const float* filter) override { convolution_->forward(input_, filter, y_.data()); }
  const OutputPlace& outputs() const override { return place_; }
  void backward(float* filter_gradient, bool add) override {
    convolution_->backward_filter(input_, y_.data(), filter_gradient, add ? 1.0F : 0.0F);
  }

  FilterOrder order() const override {
    const LayerGeometry& g = part_.geometry;
    const std::size_t kernel = product_of(g.kernel), fan_in = static_cast<std::size_t>(g.fan_in());
    const auto group_rows = static_cast<std::size_t>(g.outputs / g.groups);
    const std::size_t group_channels = fan_in / kernel;
    const bool last = layout_ == DeviceLayout::nhwc;
    if (g.kind == LayerKind::convolution) {
      return {group_rows, kernel, group_rows * fan_in, fan_in, last ? 1 : kernel, last ? group_channels : 1};
    }
    const std::size_t by_channel = group_rows * kernel;
    return {group_rows, kernel, group_channels * by_channel, last ? 1 : kernel, by_channel, last ? group_rows : 1};
  }
  bool is_matrix() const override {
    return whole_.kind == LayerKind::convolution && (layout_ == DeviceLayout::nchw || product_of(whole_.kernel) == 1);
  }

 private:
  void reserve(DeviceArray<float>& array, std::size_t count) {
    if (array.size() >= count) return;
    array = {};
    array = {device_.memory(), count, "fine-tuning a layer in mini-batches"};
  }

  const Convolution& convolution_for(const Shape& shape) {
    constexpr std::size_t kShapes = 8;
    auto found = convolutions_.find(shape);
    if (found == convolutions_.end()) {
      if (convolutions_.size() == kShapes) convolutions_.clear();
      Shape own = shape;
      own[1] = part_.geometry.inputs;
      found =
          convolutions_.emplace(shape, Convolution(device_, part_.geometry, own, whole_.inputs, layout_, precision_))
              .first;
    }
    return found->second;
  }

  Device& device_;
  LayerGeometry whole_;
  RowRange rows_;
  PartOfLayer part_;
  DeviceLayout layout_;
  DevicePrecision precision_;
  DeviceArray<float> y_, input_last_;
  const float* input_ = nullptr;
  OutputPlace place_{};
  std::map<Shape, Convolution> convolutions_;
  const Convolution* convolution_ = nullptr;
};

using solve::Patches;

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

std::unique_ptr<LayerPass> convolution_pass(Device& device, const LayerGeometry& geometry, RowRange rows,
                                            DeviceLayout layout, DevicePrecision precision) {
  return std::make_unique<ConvolutionPass>(device, geometry, rows, layout, precision);
}

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
