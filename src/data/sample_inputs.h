// One sample out of its turn.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/sample.h"

namespace detent::data {

/// The inputs of the sample at this position, for what was lost and has to be computed again. The source is read from
/// its start and left behind the sample. Throws bad_input when it has fewer.
inline std::vector<Array> sample_inputs(SampleSource& source, std::size_t wanted) {
  source.rewind();
  std::optional<Sample> sample;
  for (std::size_t number = 0; number <= wanted; ++number) sample = source.next();
  if (!sample) throw bad_input(fmt::format("calibration sample {} no longer exists", wanted + 1));
  return std::move(sample->inputs);
}

}  // namespace detent::data
