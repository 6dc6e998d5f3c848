// What check says of a model in one line.
#pragma once

#include <string>

#include "detent/check.h"

namespace detent::checking {

/// "qnn: 20 nodes accepted, 1 fall back, 0 refused; 1 left to the CPU, 2 parts of the graph; 98.0 % of 1.2 M
/// multiplications in integers". What is not known of the multiplications is left out.
std::string headline(const CheckResult& result);

}  // namespace detent::checking
