// Runs every sample through the model with observers in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "calibration/device_observers.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "exec/session.h"
#include "quantization/placement/placement.h"
#include "run/context.h"
#include "run/files/checkpoint.h"
#include "run/model/prepare.h"
#include "shim/ranks.h"
#include "store/spool.h"

namespace detent::run {

/// Times of nodes, measured in the first runs.
struct Recording {
  std::filesystem::path directory;  // for a working file
  std::vector<exec::NodeTime> nodes;
  double session_seconds = 0;  // from the start of collect() to that of the first session's clock
};

/// What a calibration did on a device, and which nodes stayed on the CPU.
struct OnDevice {
  std::filesystem::path directory;           // for a working file
  std::map<std::string, std::size_t> nodes;  // on the CPU, by operator type, in the first run of each segment
  std::size_t copies = 0;                    // between host and device, for these nodes
  calibration::DeviceWork observing = {};
  std::uint64_t input_bytes = 0;  // of samples copied to the device
};

class OddInputs;

struct CollectOptions {
  bool histograms = false;
  bool votes = false;
  bool allow_nonfinite = false;
  int workers = 1;                               // samples at a time, in threads that share one session
  std::vector<int> cuts = {};                    // where the model is cut into segments
  store::Spool* spool = nullptr;                 // needed where it is cut
  Checkpoints* checkpoints = nullptr;            // progress is saved when given
  bool keep_result = false;                      // the result itself is saved too
  const CalibrationProgress* earlier = nullptr;  // progress to continue from; with the same cuts
  /// Called with the initializers that a segment has read, while their pages are likely still in memory.
  std::function<void(const std::vector<std::string>& names)> weights_at_hand = {};
  Recording* recording = nullptr;  // filled when given
  OddInputs* odd = nullptr;        // what looks at the samples too, when given
  /// Whose samples are parts of a whole: all get the statistics of all. Null: this process has all samples.
  shim::Ranks* ranks = nullptr;
  /// The device to run and observe the model on, with one worker; `on_device` must be given, and is filled.
  calibration::CalibrationDevice* device = nullptr;
  OnDevice* on_device = nullptr;
};

/// Statistics of all values that the placement observes. They do not depend on workers, cuts, the order of samples, or
/// where an earlier process stopped. A device rounds differently from the CPU, so its statistics differ a little.
/// Throws what reading and running the samples throw, of several errors that of the earliest sample, and bad_input when
/// the samples are not those of the earlier process.
calibration::Statistics collect(const Context& context, const Prepared& prepared,
                                const quantization::Placement& placement, data::SampleSource& source,
                                const CollectOptions& options);

}  // namespace detent::run
