#include "data/formats/picture_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/failure.h"
#include "data/formats/picture.h"
#include "data/formats/text.h"

namespace detent::data {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kColours = 3;
constexpr std::array<double, kColours> kMean{0.485, 0.456, 0.406}, kDeviation{0.229, 0.224, 0.225};  // of ImageNet
constexpr std::array<double, kColours> kLuma{0.299, 0.587, 0.114};                                   // ITU-R BT.601
constexpr std::uint8_t kPadding = 114;

/// What the model's input asks of a picture.
struct Frame {
  std::size_t width = 0, height = 0, channels = 0;
  bool channels_last = false;
};

Error no_picture(const InputSpec& input) {
  return usage_error(fmt::format("--images: the input '{}' is {}, which takes no pictures", printable(input.name, 120),
                                 describe(input)),
                     "give --calibration-data; pictures are float32 or uint8, [N, 3, H, W] or [N, H, W, 3]");
}

std::size_t side(std::int64_t fixed, const ImageRecipe& recipe) {
  if (fixed > 0) return static_cast<std::size_t>(fixed);
  if (recipe.size == 0) throw usage_error("--images: the model takes pictures of any size", "give --set image-size N");
  return recipe.size;
}

Frame frame_of(const InputSpec& input, const ImageRecipe& recipe) {
  if (!input.shape || input.shape->size() != 4) throw no_picture(input);
  if (input.type != onnx::DataType::float32 && input.type != onnx::DataType::uint8) throw no_picture(input);
  const auto& shape = *input.shape;
  const auto is_channels = [](std::int64_t n) { return n == 1 || n == static_cast<std::int64_t>(kColours); };
  if (is_channels(shape[1]) && !is_channels(shape[3]))
    return {side(shape[3], recipe), side(shape[2], recipe), static_cast<std::size_t>(shape[1]), false};
  if (is_channels(shape[3]) && !is_channels(shape[1]))
    return {side(shape[2], recipe), side(shape[1], recipe), static_cast<std::size_t>(shape[3]), true};
  throw no_picture(input);
}

Picture cropped(const Picture& picture, std::size_t width, std::size_t height) {
  const auto middle = [](std::size_t whole, std::size_t part) {  // halves to the even, as Python's round()
    return static_cast<std::size_t>(std::nearbyint(static_cast<double>(whole - part) / 2));
  };
  const std::size_t left = middle(picture.width, width), top = middle(picture.height, height);
  Picture out{width, height, {}};
  for (std::size_t y = 0; y < height; ++y) {
    const auto* row = picture.rgb.data() + ((top + y) * picture.width + left) * kColours;
    out.rgb.insert(out.rgb.end(), row, row + width * kColours);
  }
  return out;
}

/// So large that a short side of 224 is cut from one of 256; sides are rounded as torchvision rounds them.
Picture centre(const Picture& picture, const Frame& frame, const fs::path& file) {
  constexpr double kShare = 224.0 / 256.0;
  const auto w = static_cast<double>(picture.width), h = static_cast<double>(picture.height);
  const double by_width = std::round(static_cast<double>(frame.width) / kShare) / w;
  const double by_height = std::round(static_cast<double>(frame.height) / kShare) / h;
  const double scale = std::max(by_width, by_height);
  const auto scaled = [&](double from, std::size_t least) {
    return std::max(static_cast<std::size_t>(from * scale + 1e-9), least);
  };
  const std::size_t width = scaled(w, frame.width), height = scaled(h, frame.height);
  if (width > kMostPixels / height)
    throw bad_input(fmt::format("{}: a picture of {} x {} pixels is too narrow: it becomes one of {} x {}",
                                quoted(file), picture.width, picture.height, width, height),
                    "leave it out, or crop it");
  return cropped(resized(picture, width, height), frame.width, frame.height);
}

Picture letterboxed(const Picture& picture, const Frame& frame) {
  const auto w = static_cast<double>(picture.width), h = static_cast<double>(picture.height);
  const double scale = std::min(static_cast<double>(frame.width) / w, static_cast<double>(frame.height) / h);
  const auto scaled = [&](double from) { return std::max<std::size_t>(std::llround(from * scale), 1); };
  const auto small = resized(picture, scaled(w), scaled(h));
  Picture out{frame.width, frame.height, std::vector<std::uint8_t>(frame.width * frame.height * kColours, kPadding)};
  const std::size_t left = (frame.width - small.width) / 2, top = (frame.height - small.height) / 2;
  for (std::size_t y = 0; y < small.height; ++y)
    std::copy_n(small.rgb.data() + y * small.width * kColours, small.width * kColours,
                out.rgb.data() + ((top + y) * frame.width + left) * kColours);
  return out;
}

Picture fitted(const fs::path& file, const Frame& frame, ImagePreset preset, std::uint64_t memory) {
  const auto picture = read_picture(file, memory);
  if (preset == ImagePreset::imagenet) return centre(picture, frame, file);
  if (preset == ImagePreset::letterbox) return letterboxed(picture, frame);
  return resized(picture, frame.width, frame.height);
}

double scaled_value(double byte, std::size_t channel, ImagePreset preset) {
  switch (preset) {
    case ImagePreset::imagenet: return (byte / 255 - kMean.at(channel)) / kDeviation.at(channel);
    case ImagePreset::one_to_one: return byte / 127.5 - 1;
    case ImagePreset::bytes: return byte;
    default: return byte / 255;
  }
}

std::vector<fs::path> list_pictures(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const auto name = at->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.')) {
      if (at->is_directory(ignored)) at.disable_recursion_pending();
    } else if (is_picture(name) && !at->is_directory(ignored)) {
      found.push_back(at->path());
    }
  }
  if (failed) throw failed_call(errno_of(failed), fmt::format("cannot list {}", quoted(folder)), ErrorKind::bad_input);
  if (found.empty())
    throw bad_input(fmt::format("--images: {} holds no .jpg, .jpeg or .png", quoted(folder)), "give their folder");
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return natural_less(a.string(), b.string()); });
  return found;
}

/// `count` of all, evenly spread: folders are often sorted by class.
std::vector<fs::path> spread(const std::vector<fs::path>& all, std::size_t count) {
  if (count == 0 || count >= all.size()) return all;
  std::vector<fs::path> some;
  for (std::size_t i = 0; i < count; ++i) some.push_back(all[i * all.size() / count]);
  return some;
}

class Pictures : public SampleStream {
 public:
  Pictures(std::vector<fs::path> files, InputSpec input, const ImageRecipe& recipe)
      : files_(std::move(files)), input_(std::move(input)), recipe_(recipe), frame_(frame_of(input_, recipe)) {}

  std::optional<std::vector<NamedArray>> next() override {
    if (next_ == files_.size()) return std::nullopt;
    const auto picture = fitted(files_[next_++], frame_, recipe_.preset, recipe_.memory);
    return std::vector{input_.type == onnx::DataType::uint8 ? array_of<std::uint8_t>(picture, ElementType::uint8)
                                                            : array_of<float>(picture, ElementType::float32)};
  }
  void rewind() override { next_ = 0; }
  std::size_t size() const override { return files_.size(); }

 private:
  template <class T>
  NamedArray array_of(const Picture& picture, ElementType type) const {
    auto values = std::make_shared<std::vector<T>>(frame_.channels * frame_.width * frame_.height);
    const std::size_t pixels = frame_.width * frame_.height;
    for (std::size_t p = 0; p < pixels; ++p) {
      const auto* rgb = picture.rgb.data() + p * kColours;
      for (std::size_t c = 0; c < frame_.channels; ++c) {
        const double byte = frame_.channels == 1 ? kLuma[0] * rgb[0] + kLuma[1] * rgb[1] + kLuma[2] * rgb[2]
                                                 : static_cast<double>(rgb[c]);
        const double value = scaled_value(byte, c, recipe_.preset);
        (*values)[frame_.channels_last ? p * frame_.channels + c : c * pixels + p] =
            static_cast<T>(std::is_same_v<T, float> ? value : std::round(value));
      }
    }
    const auto n = [](std::size_t x) { return static_cast<std::int64_t>(x); };
    const auto h = n(frame_.height), w = n(frame_.width), c = n(frame_.channels);
    return {
        .name = input_.name,
        .type = type,
        .shape = frame_.channels_last ? std::vector<std::int64_t>{1, h, w, c} : std::vector<std::int64_t>{1, c, h, w},
        .bytes = std::as_bytes(std::span(*values)),
        .owner = values};
  }

  std::vector<fs::path> files_;
  InputSpec input_;
  ImageRecipe recipe_;
  Frame frame_;
  std::size_t next_ = 0;
};

}  // namespace

std::unique_ptr<SampleStream> open_pictures(const fs::path& folder, const InputSpec& input, const ImageRecipe& recipe) {
  if (recipe.preset == ImagePreset::none)
    throw usage_error("--images: how pictures become inputs is not said",
                      "give --image-preset: imagenet, 01 (0 to 1), 11 (-1 to 1), 255 (0 to 255) or yolo");
  if (input.type == onnx::DataType::uint8 && recipe.preset != ImagePreset::bytes)
    throw usage_error("--images: the model takes bytes", "give --image-preset 255");
  return std::make_unique<Pictures>(spread(list_pictures(folder), recipe.samples), input, recipe);
}

}  // namespace detent::data
