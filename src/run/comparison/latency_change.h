// How long the quantized model runs beside the float one, where both are deployed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"

namespace detent::run {

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

/// A note where the quantized model is slower, else empty.
std::string slower_note(const LatencyChange& change);

}  // namespace detent::run
