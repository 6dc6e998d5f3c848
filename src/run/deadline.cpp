#include "run/deadline.h"

#include <fmt/format.h>

namespace detent::run {

Error time_is_over(double seconds, bool resumable) {
  return resource_error(fmt::format("the time limit of {} s has passed", seconds),
                        resumable
                            ? "the same command continues the run"
                            : "give more, or --resume from the beginning, which keeps what is done for the next run");
}

}  // namespace detent::run
