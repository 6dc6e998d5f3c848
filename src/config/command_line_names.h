// Words of options that only the command line takes.
#pragma once

#include <span>

#include "config/enum_names.h"
#include "data/formats/picture_stream.h"

namespace detent::config {

/// How a result is printed.
enum class SummaryForm { text, md };

template <>
std::span<const EnumName> enum_names<SummaryForm>();
template <>
std::span<const EnumName> enum_names<data::ImagePreset>();

}  // namespace detent::config
