// The words of BlockFloat.
#pragma once

#include "config/enum_names.h"

namespace detent::config {

template <>
std::span<const EnumName> enum_names<BlockFloat>();

}  // namespace detent::config
