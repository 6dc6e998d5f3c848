// What tells the events of a device that is the host the time.
#pragma once

#include <functional>

namespace detent::cuda {

/// Milliseconds. The host's clock, unless a test sets another for a while.
std::function<double()>& event_clock();

}  // namespace detent::cuda
