#include "data/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>

#ifdef DETENT_HAS_JPEG
#include <jpeglib.h>
// after jpeglib.h
#include <jerror.h>
#endif
#ifdef DETENT_HAS_PNG
#include <png.h>
#endif

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace detent::data {
namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kChannels = 3;

// A file, and what reading it may take.
struct Source {
  Bytes bytes;
  std::string where;
  std::uint64_t memory = 0;
};

// By the header, before memory is taken. `pixel`: bytes that one takes on the way.
void check_size(std::uint64_t width, std::uint64_t height, std::uint64_t pixel, const Source& source) {
  if (width == 0 || height == 0 || width > kMostPixels / height)
    throw bad_input(fmt::format("{}: a picture of {} x {} pixels is not read", source.where, width, height),
                    "leave it out, or make it smaller");
  const auto needed = width * height * pixel;
  if (source.memory != 0 && needed > source.memory)
    throw resource_error(fmt::format("{}: a picture of {} x {} pixels takes {} while it is read, and {} are available",
                                     source.where, width, height, format_size(needed), format_size(source.memory)),
                         "make it smaller, or raise --memory-budget");
}

#ifdef DETENT_HAS_JPEG

// Each scan of a progressive picture goes over all of it, and a few bytes make one. Encoders write about ten.
constexpr int kMostScans = 500;

struct JpegErrors {
  jpeg_error_mgr base;  // first, so that a pointer to it is one to all
  std::jmp_buf failed;
  char text[JMSG_LENGTH_MAX];
};

void jpeg_fail(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  errors->base.format_message(jpeg, errors->text);
  std::longjmp(errors->failed, 1);
}

// A warning; of these, only the end of the file before that of the picture makes it useless.
void jpeg_warn(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) jpeg_fail(jpeg);
}

void jpeg_watch(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  std::snprintf(errors->text, sizeof errors->text, "it has more than %d scans", kMostScans);
  std::longjmp(errors->failed, 1);
}

/// Everything between setjmp() and longjmp() is the C library's: no object here has a destructor that would be missed.
bool decode_jpeg(jpeg_decompress_struct& jpeg, JpegErrors& errors, const Source& source, Picture& picture) {
  constexpr std::uint64_t kPixel = 3 + 6;  // its colours, and the coefficients of a progressive one
  jpeg_progress_mgr watch{};
  watch.progress_monitor = &jpeg_watch;
  if (setjmp(errors.failed) != 0) return false;
  jpeg_create_decompress(&jpeg);
  jpeg.progress = &watch;
  jpeg_mem_src(
      &jpeg, reinterpret_cast<const unsigned char*>(source.bytes.data()),
      static_cast<unsigned long>(source.bytes.size()));  // of 32 bits on Windows; files of pictures are smaller
  jpeg_read_header(&jpeg, TRUE);
  check_size(jpeg.image_width, jpeg.image_height, kPixel, source);
  jpeg.out_color_space = JCS_RGB;
  jpeg_start_decompress(&jpeg);
  picture.width = jpeg.output_width;
  picture.height = jpeg.output_height;
  picture.rgb.resize(picture.width * picture.height * kChannels);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = picture.rgb.data() + jpeg.output_scanline * picture.width * kChannels;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

Picture read_jpeg(const Source& source) {
  struct Jpeg : jpeg_decompress_struct {
    Jpeg() : jpeg_decompress_struct{} {}
    Jpeg(const Jpeg&) = delete;
    Jpeg& operator=(const Jpeg&) = delete;
    ~Jpeg() { jpeg_destroy_decompress(this); }
  } jpeg;
  JpegErrors errors{};
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = &jpeg_fail;
  errors.base.emit_message = &jpeg_warn;
  Picture picture;
  if (!decode_jpeg(jpeg, errors, source, picture))
    throw bad_input(fmt::format("{}: not a JPEG that can be read ({})", source.where, printable(errors.text)),
                    "leave it out, or write it again");
  return picture;
}

#else
Picture read_jpeg(const Source& source) {
  throw bad_input(source.where + ": this build of detent reads no JPEG",
                  "build it with libjpeg, or use detent.data.images in Python");
}
#endif

#ifdef DETENT_HAS_PNG

Picture read_png(const Source& source) {
  constexpr std::uint64_t kPixel = 4 + 3;  // with transparency, and without
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  const auto fail = [&] {
    const std::string text(image.message, strnlen(image.message, sizeof(image.message)));
    png_image_free(&image);
    return bad_input(fmt::format("{}: not a PNG that can be read ({})", source.where, printable(text)),
                     "leave it out, or write it again");
  };
  if (png_image_begin_read_from_memory(&image, source.bytes.data(), source.bytes.size()) == 0) throw fail();
  try {
    check_size(image.width, image.height, kPixel, source);
  } catch (...) {
    png_image_free(&image);
    throw;
  }
  image.format = PNG_FORMAT_RGBA;
  std::vector<std::uint8_t> rgba(PNG_IMAGE_SIZE(image));
  if (png_image_finish_read(&image, nullptr, rgba.data(), 0, nullptr) == 0) throw fail();
  Picture picture{image.width, image.height, {}};
  picture.rgb.resize(picture.width * picture.height * kChannels);
  for (std::size_t i = 0; i < picture.width * picture.height; ++i)
    std::copy_n(rgba.data() + 4 * i, kChannels, picture.rgb.data() + kChannels * i);
  return picture;
}

#else
Picture read_png(const Source& source) {
  throw bad_input(source.where + ": this build of detent reads no PNG",
                  "build it with libpng, or use detent.data.images in Python");
}
#endif

bool starts_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

/// For each pixel of one axis of the result, the pixels of the source that it is made of, and their weights.
struct Taps {
  std::size_t first = 0;
  std::vector<double> weights;
};

std::vector<Taps> taps(std::size_t from, std::size_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), width = std::max(scale, 1.0);
  std::vector<Taps> all(to);
  for (std::size_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto first = static_cast<std::size_t>(std::max(center - width + 0.5, 0.0));
    const auto last = std::min(static_cast<std::size_t>(center + width + 0.5), from);
    double sum = 0;
    all[i].first = first;
    for (std::size_t x = first; x < last; ++x) {
      const double weight = std::max(1 - std::abs((static_cast<double>(x) + 0.5 - center) / width), 0.0);
      all[i].weights.push_back(weight);
      sum += weight;
    }
    for (double& weight : all[i].weights) weight /= sum;
  }
  return all;
}

std::uint8_t to_byte(double value) {
  return static_cast<std::uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

/// One axis: `lines` lines of pixels that are `step` bytes apart, lines being `line_step` apart.
struct Axis {
  std::size_t lines, line_step, step;
};

void resample(const std::vector<Taps>& all, const std::uint8_t* from, const Axis& source, std::uint8_t* to,
              const Axis& target) {
  for (std::size_t line = 0; line < source.lines; ++line) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      double sums[kChannels] = {};
      const auto* pixel = from + line * source.line_step + all[i].first * source.step;
      for (const double weight : all[i].weights) {
        for (std::size_t c = 0; c < kChannels; ++c) sums[c] += weight * pixel[c];
        pixel += source.step;
      }
      auto* result = to + line * target.line_step + i * target.step;
      for (std::size_t c = 0; c < kChannels; ++c) result[c] = to_byte(sums[c]);
    }
  }
}

}  // namespace

bool is_picture(std::string_view name) {
  std::string extension(name.substr(std::min(name.rfind('.'), name.size())));
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

Picture read_picture(const std::filesystem::path& path, std::uint64_t memory) {
  const auto file = MappedFile::open(path, "picture");
  const Source source{file->bytes(), quoted(path), memory};
  if (starts_with(source.bytes, "\x89PNG")) return read_png(source);
  if (starts_with(source.bytes, "\xFF\xD8")) return read_jpeg(source);
  throw bad_input(fmt::format("{} is neither a JPEG nor a PNG", quoted(path)), "leave it out, or convert it");
}

Picture resized(const Picture& picture, std::size_t width, std::size_t height) {
  Picture wide{width, picture.height, {}};
  wide.rgb.resize(width * picture.height * kChannels);
  resample(taps(picture.width, width), picture.rgb.data(), {picture.height, picture.width * kChannels, kChannels},
           wide.rgb.data(), {picture.height, width * kChannels, kChannels});
  Picture out{width, height, {}};
  out.rgb.resize(width * height * kChannels);
  resample(taps(picture.height, height), wide.rgb.data(), {width, kChannels, width * kChannels}, out.rgb.data(),
           {width, kChannels, width * kChannels});
  return out;
}

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
  if (recipe.size == 0)
    throw usage_error("--images: the model takes pictures of any size",
                      "give its width and height, as in --set image-size=224");
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
    throw usage_error("--images needs --image-preset, which says how pictures become inputs",
                      "give --image-preset: imagenet, 01 (0 to 1), 11 (-1 to 1), 255 (0 to 255) or yolo");
  if (input.type == onnx::DataType::uint8 && recipe.preset != ImagePreset::bytes)
    throw usage_error("--images: the model takes bytes", "give --image-preset 255");
  return std::make_unique<Pictures>(spread(list_pictures(folder), recipe.samples), input, recipe);
}

}  // namespace detent::data
