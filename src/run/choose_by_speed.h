// Leaves in float what this machine runs faster so.
#pragma once

#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "quantization/placement.h"
#include "run/prepare.h"
#include "run/run_directory.h"

namespace detent::run {

struct SpeedChoice {
  std::vector<std::string> in_float;  // nodes by Node::id(), in the order of the model
  std::vector<std::string> notes;
};

/// `all`: where everything that may be quantized is. Shapes are those of the first sample; without samples, those that
/// the model states. Times that the kernel table lacks are measured and put there; a resumed run decides as the
/// interrupted one did. Throws what the kernel table and sessions throw.
SpeedChoice choose_by_speed(const Prepared& prepared, const quantization::Placement& all,
                            const QuantizeOptions& options, const exec::Runtime& runtime, data::SampleSource* source,
                            const RunDirectory& directory);

}  // namespace detent::run
