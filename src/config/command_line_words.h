// Words of options that only the command line takes.
#pragma once

#include <span>

#include "config/words.h"
#include "data/picture_stream.h"

namespace detent::config {

/// How a result is printed.
enum class SummaryForm { text, md };

template <>
std::span<const Word> words<SummaryForm>();
template <>
std::span<const Word> words<data::ImagePreset>();

}  // namespace detent::config
