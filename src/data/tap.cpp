#include "data/tap.h"

#include "base/error.h"

namespace detent::data {

void TapReceiver::receive_on_device(std::size_t, const DeviceTensorView&) {
  throw internal_error("a receiver of host tensors was given one on a device");
}

}  // namespace detent::data
