// Runs every sample through the model with observers in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "calibration/device_observers.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/device.h"
#include "exec/session.h"
#include "profile/trace.h"
#include "quantization/placement/placement.h"
#include "run/context.h"
#include "run/files/run_directory.h"
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

/// Collective: rank 0 ends with the statistics of all ranks' samples. Throws bad_input where they are of different
/// models.
void gather_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop);

/// The same, and all ranks get them.
void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop);

/// The GPU's part of one calibration; does nothing when the CPU calibrates.
class DeviceCalibration {
 public:
  /// Opens the first of the devices for observing `taps` values. `directory` is for working files; `activity` may be
  /// null, see DeviceRequest. Throws as calibration::open_cuda().
  DeviceCalibration(const DeviceConfig& config, std::size_t taps, bool histograms, std::filesystem::path directory,
                    profile::DeviceActivity* activity);

  /// Makes collect() use it; it must outlive that call.
  void lend(CollectOptions& options);
  /// What ran on the GPU and what did not, one sentence each.
  std::vector<std::string> notes() const;
  /// Null for the CPU.
  const OnDevice* use() const { return device_ ? &use_ : nullptr; }

 private:
  const DeviceConfig& config_;
  std::unique_ptr<calibration::CalibrationDevice> device_;
  OnDevice use_;
};

/// Where the model's nodes run in passes that are not calibration: on the first of the devices, with `shares` of them
/// using its memory at a time. Null: on the CPU, where none is given.
std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, unsigned shares = 1);
/// The same where the runtime has the provider of that device; without it they run on the CPU, as
/// inference_device_note() tells.
std::shared_ptr<const shim::Device> inference_device_of(const DeviceConfig& config, const exec::Runtime& runtime,
                                                        unsigned shares = 1);
/// Of `passes`, such as "trials"; empty where no device is given.
std::string inference_device_note(const DeviceConfig& config, const exec::Runtime& runtime, std::string_view passes);

/// The notes of a calibration on `device`.
std::vector<std::string> device_notes(const DeviceConfig& config, const calibration::CalibrationDevice& device,
                                      const OnDevice& use);

}  // namespace detent::run
