// The words of BlockFloat.
#pragma once

#include "config/words.h"

namespace detent::config {

template <>
std::span<const Word> words<BlockFloat>();

}  // namespace detent::config
