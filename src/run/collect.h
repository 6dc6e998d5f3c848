// Runs every sample through the model with observers in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "calibrate/device_observers.h"
#include "calibrate/statistics.h"
#include "data/sample.h"
#include "detent/progress.h"
#include "exec/session.h"
#include "quantize/placement.h"
#include "run/checkpoint.h"
#include "run/prepare.h"
#include "store/spool.h"

namespace detent::run {

/// Times of nodes, taken in the first runs.
struct Recording {
  std::filesystem::path directory;  // for a working file
  std::vector<exec::NodeTime> nodes;
  double session_seconds = 0;  // from the start of collect() to that of the first session's clock
};

/// What a calibration did on a device, and what not.
struct OnDevice {
  std::filesystem::path directory;           // for a working file
  std::map<std::string, std::size_t> nodes;  // left on the CPU, by operator type; of the first run of each segment
  std::size_t copies = 0;                    // between host and device, for them
  calibration::DeviceWork observing = {};
  std::uint64_t input_bytes = 0;  // of samples, which went there
};

struct CollectOptions {
  bool histograms = false;
  bool votes = false;
  bool allow_nonfinite = false;
  int threads = 0;                      // of the runtime; 0: one per core
  int workers = 1;                      // samples at a time, in threads that share one session
  std::vector<int> cuts = {};           // where the model is cut into segments
  store::Spool* spool = nullptr;        // needed where it is cut
  Checkpoints* checkpoints = nullptr;   // progress is put down when given
  bool keep_result = false;             // the result itself is put down too
  const Progressed* earlier = nullptr;  // progress to go on from; its cuts must be those above
  /// Told the initializers that a segment has read, while their pages are likely still in memory.
  std::function<void(const std::vector<std::string>& names)> weights_at_hand = {};
  Progress progress = {};
  std::stop_token stop = {};
  Recording* recording = nullptr;  // filled when given
  /// The model runs and is observed there; one worker, and `on_device` is given, and filled.
  calibration::CalibrationDevice* device = nullptr;
  OnDevice* on_device = nullptr;
};

/// Statistics of all that the placement needs. They do not depend on workers, cuts, the order of samples, or on where
/// an earlier process stopped; a device's arithmetic rounds otherwise than the CPU's, and so gives others. Throws what
/// reading and running the samples throw; of several, the error of the earliest sample; bad_input when the samples are
/// not those of the earlier process.
calibration::Statistics collect(const Prepared& prepared, const quantization::Placement& placement,
                                const exec::Runtime& runtime, data::SampleSource& source,
                                const CollectOptions& options);

}  // namespace detent::run
