// quantize_random MODEL OUTPUT: quantizes a model of one float input with random samples, as an example of the C++ library.
#include <detent/quantize.h>
#include <detent/version.h>

#include <cstdio>
#include <random>

namespace {

/// Samples that are made when they are asked for, and are the same each time.
class RandomSamples final : public detent::SampleStream {
 public:
  explicit RandomSamples(std::vector<std::int64_t> shape) : shape_(std::move(shape)) {}

  std::optional<std::vector<detent::NamedArray>> next() override {
    if (made_ == size()) return std::nullopt;
    std::mt19937 random(static_cast<unsigned>(made_++));
    std::size_t count = 1;
    for (const auto dim : shape_) count *= static_cast<std::size_t>(dim);
    const auto values = std::make_shared<std::vector<float>>(count);
    for (float& value : *values) value = static_cast<float>(random()) / 4294967296.0F * 2 - 1;
    detent::NamedArray array;  // of the only input, so it needs no name
    array.shape = shape_;
    array.bytes = std::as_bytes(std::span(*values));
    array.owner = values;
    return std::vector{array};
  }
  void rewind() override { made_ = 0; }
  std::size_t size() const override { return 8; }

 private:
  std::vector<std::int64_t> shape_;
  std::size_t made_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: quantize_random MODEL OUTPUT (detent %s)\n", DETENT_VERSION_STRING);
    return 2;
  }
  try {
    RandomSamples samples({1, 3, 48, 192});
    detent::QuantizeOptions options;
    options.model = arguments[1];
    options.output = arguments[2];
    options.samples = &samples;
    options.format = "int8";  // in integers, whatever runs fastest here
    options.optimize_for = detent::OptimizeFor::size;
    options.bench = false;
    const detent::QuantizeResult result = detent::quantize(options);
    std::printf("%zu activations quantized\n", result.activations.size());
  } catch (const detent::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return detent::exit_code(error.kind());
  }
}
