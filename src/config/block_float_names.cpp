#include "config/block_float_names.h"

namespace detent::config {

template <>
std::span<const EnumName> enum_names<BlockFloat>() {
  static constexpr EnumName all[] = {{"none", static_cast<int>(BlockFloat::none)},
                                     {"bfp16", static_cast<int>(BlockFloat::bfp16)},
                                     {"mx4", static_cast<int>(BlockFloat::mx4)},
                                     {"mx6", static_cast<int>(BlockFloat::mx6)},
                                     {"mx9", static_cast<int>(BlockFloat::mx9)},
                                     {"mxfp8e5m2", static_cast<int>(BlockFloat::mxfp8e5m2)},
                                     {"mxfp8e4m3", static_cast<int>(BlockFloat::mxfp8e4m3)},
                                     {"mxfp6e3m2", static_cast<int>(BlockFloat::mxfp6e3m2)},
                                     {"mxfp6e2m3", static_cast<int>(BlockFloat::mxfp6e2m3)},
                                     {"mxfp4e2m1", static_cast<int>(BlockFloat::mxfp4e2m1)},
                                     {"mxint8", static_cast<int>(BlockFloat::mxint8)}};
  return all;
}

}  // namespace detent::config
