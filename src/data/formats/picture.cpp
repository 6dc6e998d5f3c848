#include "data/formats/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <span>

#ifdef DETENT_HAS_JPEG
#include <jpeglib.h>
// after jpeglib.h
#include <jerror.h>
#endif
#ifdef DETENT_HAS_PNG
#include <png.h>
#endif

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "data/formats/text.h"

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
    throw resource_error(
        fmt::format("{}: a picture of {} x {} pixels takes {} while it is read, of the {} that there are", source.where,
                    width, height, format_size(needed), format_size(source.memory)),
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
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(source.bytes.data()), source.bytes.size());
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

}  // namespace detent::data
