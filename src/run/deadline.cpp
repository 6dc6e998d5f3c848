#include "run/deadline.h"

#include <fmt/format.h>

namespace detent::run {

Error time_is_over(double seconds, const std::string& hint) {
  return resource_error(fmt::format("the time limit of {} s has passed", seconds), hint);
}

}  // namespace detent::run
