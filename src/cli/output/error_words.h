// How errors are told.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>

namespace detent::cli {

/// An error as a share of the signal, as the signal to quantization noise ratio in dB.
inline double in_db(double error) { return -10 * std::log10(error); }

/// What became of --set rotation=auto; errors as in RotatedStream.
inline std::string rotation_words(bool kept, double error_before, double error_after) {
  return fmt::format("rotation: {}, SQNR of the worst output on held-back samples {:.2f} dB without, {:.2f} dB with it",
                     kept ? "kept" : "left out", in_db(error_before), in_db(error_after));
}

}  // namespace detent::cli
