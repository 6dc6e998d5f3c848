// How a run runs: threads, memory and disk, devices.
#include <nlohmann/json.hpp>

#include "config/option.h"

namespace detent::config {
namespace {

constexpr unsigned kQuantizing = kQuantize | kPlan;
constexpr unsigned kCalibrating = kQuantizing | kCalibrate;
constexpr std::string_view kRunning = "Running";
constexpr std::string_view kMemory = "Memory and disk";
constexpr std::string_view kDevices = "Devices";
constexpr Bounds kNotNegative{.min = 0};
constexpr Bounds kAtLeastOne{.min = 1};

// Another number of devices sums in another order; which devices they are makes no difference.
nlohmann::json number_of_devices(const Member& devices) { return std::get<std::vector<int>*>(devices)->size(); }

const Option kMemoryRows[] = {
    {.name = "memory-budget",
     .at = DETENT_AT(resources.memory_budget),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "memory of the whole process, as in 512MiB or 2GiB",
     .label = "SIZE",
     .fallback = "80 % of what is free",
     .form = Form::bytes},
    {.name = "disk-budget",
     .at = DETENT_AT(resources.disk_budget),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "disk space for working files",
     .label = "SIZE",
     .fallback = "90 % of what is free",
     .form = Form::bytes},
    {.name = "work-dir",
     .at = DETENT_AT(resources.work_dir),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "where working files go",
     .label = "DIR",
     .fallback = "$TMPDIR or /tmp"},
    {.name = "memory-level",
     .at = DETENT_AT(resources.memory_level),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "where tensors between segments are kept: in memory (0), in memory as far as the budget allows (1), on "
             "disk (2)",
     .label = "0|1|2"},
    {.name = "segments",
     .at = DETENT_AT(resources.segments),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "cut the model into at least this many segments, where possible",
     .label = "N",
     .fallback = "as few as the budget allows"},
    {.name = "prefetch",
     .at = DETENT_AT(resources.prefetch),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "samples read ahead from disk",
     .label = "N"},
    {.name = "spool-access",
     .at = DETENT_AT(resources.spool_access),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "how spooled tensors are read and written; auto: a short probe decides",
     .label = "auto|buffered|direct|uring"},
    {.name = "spool-bfloat16",
     .at = DETENT_AT(resources.spool_bfloat16),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kMemory,
     .help = "spool tensors as bfloat16: half the bytes, and different results"},
    {.name = "resume",
     .at = DETENT_AT(resources.resume),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "continue an interrupted run for this output; if interrupted again, keep what is done"},
    {.name = "checkpoint-seconds",
     .at = DETENT_AT(resources.checkpoint_seconds),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kMemory,
     .help = "how often progress is saved; 0: after every sample",
     .label = "S",
     .bounds = kNotNegative},
};

const Option kBenchRows[] = {
    {.name = "runs",
     .at = DETENT_AT(runs),
     .commands = kBench,
     .affects = Affects::nothing,
     .group = kRunning,
     .help = "timed runs of each model",
     .label = "N",
     .fallback = "as many as --seconds allows"},
    {.name = "seconds",
     .at = DETENT_AT(seconds),
     .commands = kBench,
     .affects = Affects::nothing,
     .group = kRunning,
     .help = "time each model for about so long",
     .label = "S",
     .bounds = kNotNegative},
    {.name = "memory",
     .at = DETENT_AT(memory),
     .commands = kBench,
     .affects = Affects::nothing,
     .group = kRunning,
     .help = "measure the peak memory of each model in a process of its own",
     .off = "no-memory",
     .off_help = "start no other process"},
};

const Option kDeviceRows[] = {
    {.name = "device",
     .at = DETENT_AT(device.cuda),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kDevices,
     .help = "where calibration (on the first) and fine-tuning compute: cpu, cuda:N, or several as in cuda:0,cuda:1",
     .label = "DEVICE",
     .fallback = "cpu",
     .identity = &number_of_devices},
    {.name = "device-memory-budget",
     .at = DETENT_AT(device.memory_budget),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kDevices,
     .help = "memory to use on each device",
     .label = "SIZE",
     .fallback = "90 % of what is free",
     .form = Form::bytes},
    {.name = "device-precision",
     .at = DETENT_AT(device.precision),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kDevices,
     .help = "what a device multiplies in",
     .label = "float32|tf32|bfloat16"},
    {.name = "device-layout",
     .at = DETENT_AT(device.layout),
     .commands = kCalibrating,
     .affects = Affects::integers,
     .group = kDevices,
     .help = "layout of a device's convolutions; auto: timed for each shape",
     .label = "auto|nchw|nhwc"},
    {.name = "gds",
     .at = DETENT_AT(device.gds),
     .commands = kCalibrating,
     .affects = Affects::nothing,
     .group = kDevices,
     .help = "read stored samples past the host's memory (GPUDirect Storage); auto: where that measures faster; on: "
             "or fail",
     .label = "auto|on|off"},
};

}  // namespace

std::vector<Option> running_options() {
  std::vector<Option> all{
      {.name = "threads",
       .at = DETENT_AT(threads),
       .commands = kCalibrating | kCompare | kBench,
       .affects = Affects::statistics,
       .group = kRunning,
       .help = "threads of the runtime",
       .label = "N",
       .fallback = "one per core",
       .bounds = kNotNegative},
      {.name = "workers",
       .at = DETENT_AT(workers),
       .commands = kCalibrating,
       .affects = Affects::nothing,
       .group = kRunning,
       .help = "samples run at a time, sharing one copy of the weights",
       .label = "N",
       .bounds = kAtLeastOne},
      {.name = "runtime",
       .at = DETENT_AT(runtime),
       .commands = kCalibrating | kCompare | kInspect | kBench,
       .affects = Affects::nothing,
       .group = kRunning,
       .help = "ONNX Runtime's library",
       .label = "FILE",
       .fallback = "$DETENT_ONNXRUNTIME, beside detent, the system's"},
  };
  all.insert(all.end(), std::begin(kMemoryRows), std::end(kMemoryRows));
  all.insert(all.end(), std::begin(kBenchRows), std::end(kBenchRows));
  all.insert(all.end(), std::begin(kDeviceRows), std::end(kDeviceRows));
  return all;
}

}  // namespace detent::config
