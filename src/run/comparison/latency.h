// Figures of timed runs, and the inputs that they run on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/latency.h"
#include "exec/interleaved_timing.h"

namespace detent::run {

using Turns = std::vector<std::vector<exec::RunTime>>;

/// The figures of each model; ratios are to the first one's.
std::vector<Latency> latencies(const std::vector<Turns>& models);

/// "1.90x faster", "1.20x slower" or "as fast", of a model whose runs take `ratio` times as long.
std::string speed_words(double ratio);

/// What to say where other programs take so much that times tell nothing; else empty.
std::string busy_note(const std::vector<Latency>& all);

/// The first samples of a source, in memory: `count`, or fewer where one more of the last one's size would take more
/// than `most_bytes`, but one at the least.
std::vector<std::vector<data::Array>> first_samples(
    data::SampleSource& source, std::size_t count,
    std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max());

}  // namespace detent::run
