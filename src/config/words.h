// The words of each enumeration that an option can take, as spelled on the command line, in YAML and in Python.
#pragma once

#include <span>
#include <string_view>

#include "detent/check.h"
#include "detent/config.h"
#include "detent/device.h"
#include "detent/error.h"
#include "detent/quantize.h"
#include "detent/resources.h"

namespace detent::config {

struct Word {
  std::string_view text;
  int value = 0;
};

/// All words of an enumeration, in the order in which help lists them.
template <class Enum>
std::span<const Word> words();

template <>
std::span<const Word> words<QuantType>();
template <>
std::span<const Word> words<QuantFormat>();
template <>
std::span<const Word> words<Activations>();
template <>
std::span<const Word> words<WeightForm>();
template <>
std::span<const Word> words<WeightMethod>();
template <>
std::span<const Word> words<WeightSparsity>();
template <>
std::span<const Word> words<Rotation>();
template <>
std::span<const Word> words<KvCacheType>();
template <>
std::span<const Word> words<Outcome::Answer>();
template <>
std::span<const Word> words<WeightBits>();
template <>
std::span<const Word> words<BlockSize>();
template <>
std::span<const Word> words<ScaleType>();
template <>
std::span<const Word> words<FloatType>();
template <>
std::span<const Word> words<CalibrationMethod>();
template <>
std::span<const Word> words<ErrorMetric>();
template <>
std::span<const Word> words<SensitivityMode>();
template <>
std::span<const Word> words<EqualizeMode>();
template <>
std::span<const Word> words<AccuracyMetric>();
template <>
std::span<const Word> words<AccuracyFallback>();
template <>
std::span<const Word> words<OptimizeFor>();
template <>
std::span<const Word> words<Verdict>();
template <>
std::span<const Word> words<Rounding>();
template <>
std::span<const Word> words<FinetuneForm>();
template <>
std::span<const Word> words<DevicePrecision>();
template <>
std::span<const Word> words<DeviceLayout>();
template <>
std::span<const Word> words<GdsMode>();
template <>
std::span<const Word> words<MemoryLevel>();
template <>
std::span<const Word> words<SpoolAccess>();

/// The word of a value.
std::string_view word_of(std::span<const Word> words, int value);

/// The usage error for a text that is none of an option's words; its hint names the nearest, and all.
Error not_one_of(std::string_view option, std::string_view text, std::span<const std::string_view> all);

/// The value of a word. Throws usage with all words when there is none such.
int value_of(std::span<const Word> words, std::string_view text, std::string_view option);

}  // namespace detent::config
