// Why a consumer's integers are not those of exact arithmetic, as far as that is known.
#pragma once

#include <string>

#include "checking/differences.h"
#include "checking/groups.h"
#include "config/targets.h"

namespace detent::checking {

/// What is known to make a group's result differ like that; empty: nothing is.
std::string cause_of(const onnx::Model& model, const graph::Index& index, const Group& group,
                     const Differences& differences, const config::Target& target);

}  // namespace detent::checking
