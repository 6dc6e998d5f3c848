// Figures of timed runs, and the inputs that they run on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/given_inputs.h"
#include "data/sample.h"
#include "detent/latency.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "exec/timing.h"

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

/// From here on a file is loaded no more often than it must be.
inline constexpr double kSlowToLoad = 1;

/// How many seconds the runtime takes to load the file, about; 0 where it cannot be read. Its optimizations of pairs
/// grow with their square: 0.5 s for 3,000 QuantizeLinear and DequantizeLinear, 2.7 s for 6,000 (ONNX Runtime 1.31).
double seconds_of_pairs(const std::filesystem::path& file);

struct LatencyRequest {
  std::filesystem::path float_model;
  data::SampleSource* source = nullptr;  // null: inputs are made up
  std::size_t samples = 1;               // of the source, at most
  std::size_t turns = 10;                // of each model at the least, where all are open
  int threads = 0;
  double run_seconds = 0;         // so far, of the run whose result this is
  double sample_seconds = 0;      // that one sample takes, about; 0: not known
  std::uint64_t model_bytes = 0;  // of all models
  std::uint64_t memory = 0;       // of the process with the largest of the models open, about
  bool one_open = false;          // at a time: all would take too much
  std::uint64_t memory_budget = 0;
  std::stop_token stop = {};
};

struct MeasuredLatencies {
  std::vector<LatencyChange> changes;  // of each model; empty: there are none
  std::vector<std::string> notes;      // why there are none, or what to know about them
};

/// Times quantized models and the float one in turns, for about half a second or a twentieth of the run if that is
/// more, however many they are. What speaks against it, or goes wrong, comes back as a note; only an interruption is
/// thrown.
MeasuredLatencies measure_latencies(const exec::Runtime& runtime, const LatencyRequest& request,
                                    std::span<const std::filesystem::path> quantized);

/// A decoder reads a text once, and then makes one token after another with all before it in the cache.
inline constexpr data::MadeUp kOneToken{.steps = 1};

/// What such a token takes; empty where a model is no decoder, or made-up inputs are not what it can take.
std::vector<Latency> latencies_of_one_token(const exec::Runtime& runtime, std::span<const std::filesystem::path> models,
                                            const exec::SessionOptions& options, const exec::TimingOptions& timing);

/// A note where the quantized model is slower, else empty.
std::string slower_note(const LatencyChange& change);

}  // namespace detent::run
