#include <algorithm>

#include "base/error.h"
#include "cuda/launch.h"
#include "cuda/layer_pass.h"

namespace detent::cuda {
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

}  // namespace

std::unique_ptr<LayerPass> convolution_pass(Device& device, const LayerGeometry& geometry, RowRange rows,
                                            DeviceLayout layout, DevicePrecision precision) {
  return std::make_unique<ConvolutionPass>(device, geometry, rows, layout, precision);
}

}  // namespace detent::cuda
