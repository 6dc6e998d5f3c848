// Pictures of a file: 8 bits for each of red, green and blue.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace detent::data {

/// No picture is larger, neither as it is read nor on the way to another size.
constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 28;

struct Picture {
  std::size_t width = 0;
  std::size_t height = 0;
  std::vector<std::uint8_t> rgb;  // row after row, three bytes a pixel
};

/// Whether a file of this name is taken for a picture: .jpg, .jpeg or .png, in any case.
bool is_picture(std::string_view name);

/// Reads a JPEG or PNG file, told apart by their first bytes. Grey becomes red, green and blue; transparency and the
/// orientation that a camera noted are ignored, as by PIL.Image.open(path).convert("RGB"). Throws bad_input for a file
/// that is damaged, neither of them, larger than kMostPixels, a JPEG of more than 500 scans, or of a kind that this
/// build does not read, and resource where the size in its header needs more than `memory` bytes; 0: no limit.
Picture read_picture(const std::filesystem::path& path, std::uint64_t memory = 0);

/// Another size, by a triangle filter as wide as the pixels it takes together: PIL.Image.resize(…, BILINEAR), but for
/// the rounding of a value here and there.
Picture resized(const Picture& picture, std::size_t width, std::size_t height);

}  // namespace detent::data
