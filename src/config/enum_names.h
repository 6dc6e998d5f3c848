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

struct EnumName {
  std::string_view text;
  int value = 0;
};

/// All words of an enumeration, in the order in which help lists them.
template <class Enum>
std::span<const EnumName> enum_names();

template <>
std::span<const EnumName> enum_names<QuantType>();
template <>
std::span<const EnumName> enum_names<QuantFormat>();
template <>
std::span<const EnumName> enum_names<Activations>();
template <>
std::span<const EnumName> enum_names<WeightForm>();
template <>
std::span<const EnumName> enum_names<WeightMethod>();
template <>
std::span<const EnumName> enum_names<WeightSparsity>();
template <>
std::span<const EnumName> enum_names<Rotation>();
template <>
std::span<const EnumName> enum_names<KvCacheType>();
template <>
std::span<const EnumName> enum_names<Outcome::Answer>();
template <>
std::span<const EnumName> enum_names<WeightBits>();
template <>
std::span<const EnumName> enum_names<BlockSize>();
template <>
std::span<const EnumName> enum_names<ScaleType>();
template <>
std::span<const EnumName> enum_names<FloatType>();
template <>
std::span<const EnumName> enum_names<CalibrationMethod>();
template <>
std::span<const EnumName> enum_names<ErrorMetric>();
template <>
std::span<const EnumName> enum_names<SensitivityMode>();
template <>
std::span<const EnumName> enum_names<EqualizeMode>();
template <>
std::span<const EnumName> enum_names<AccuracyMetric>();
template <>
std::span<const EnumName> enum_names<AccuracyFallback>();
template <>
std::span<const EnumName> enum_names<OptimizeFor>();
template <>
std::span<const EnumName> enum_names<Verdict>();
template <>
std::span<const EnumName> enum_names<WeightSolver>();
template <>
std::span<const EnumName> enum_names<FinetuneForm>();
template <>
std::span<const EnumName> enum_names<DevicePrecision>();
template <>
std::span<const EnumName> enum_names<DeviceLayout>();
template <>
std::span<const EnumName> enum_names<GdsMode>();
template <>
std::span<const EnumName> enum_names<MemoryLevel>();
template <>
std::span<const EnumName> enum_names<SpoolAccess>();

/// The word of a value.
std::string_view word_of(std::span<const EnumName> words, int value);

/// The usage error for a text that is none of an option's words; its hint names the nearest, and all.
Error not_one_of(std::string_view option, std::string_view text, std::span<const std::string_view> all);

/// The value of a word. Throws usage with all words when there is none such.
int value_of(std::span<const EnumName> words, std::string_view text, std::string_view option);

}  // namespace detent::config
