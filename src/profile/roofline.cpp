#include "profile/roofline.h"

#include <algorithm>
#include <array>
#include <utility>

namespace detent::profile {
namespace {

using Bound = Bottleneck::Bound;

/// Whether figures are positive is all that is asked of them: what is not known has no part.
double share_of(double amount, double peak, double seconds) {
  return amount > 0 && peak > 0 && seconds > 0 ? amount / peak / seconds : 0;
}

/// Stages in which the same options help.
enum class Kind { samples, device, tuning_on_device, reading, writing, model, other };

Kind kind_of(std::string_view stage) {
  if (stage == "Calibration") return Kind::samples;
  if (stage == kCalibrationOnGpu) return Kind::device;
  if (stage == kTuningOnGpu) return Kind::tuning_on_device;
  if (stage == "Pre-process" || stage == "Float Model Validation" || stage == "Model Loaded") return Kind::reading;
  if (stage == "Post-process" || stage == "Model Caching") return Kind::writing;
  if (stage.starts_with("Quantization")) return Kind::model;
  return Kind::other;
}

constexpr std::string_view kModelAlone = "This stage depends on the model alone; no option changes it.";

// Each option in these sentences exists, and does in that stage what is said of it: a test reads them.
std::string_view advice_on_samples(Bound bound, bool busy) {
  switch (bound) {
    case Bound::compute:
      return busy ? "The processor is busy with more than the model's arithmetic: --method minmax needs no histograms "
                    "(--no-histogram for a statistics file), and --samples uses fewer samples."
                  : "The processor's arithmetic is the bottleneck: --threads uses more cores if there are any, "
                    "--samples uses fewer samples.";
    case Bound::memory:
      return "Main memory is the bottleneck: a larger --batch-size reads the weights once for more rows, and fewer "
             "--workers leave more of the cache to each.";
    case Bound::disk:
      return "The disk is the bottleneck: put the samples and --work-dir on a faster one, or use fewer --samples.";
    case Bound::transfer:
      return "Copies between host and device are the bottleneck: a larger --batch-size makes fewer and larger ones.";
    case Bound::contention:
    case Bound::waiting:
      return "No resource is fully used, threads wait for each other: more --workers run samples in parallel, and a "
             "larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_device(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic is the bottleneck: --set device-precision=tf32 multiplies faster, --samples uses "
             "fewer "
             "samples.";
    case Bound::memory:
      return "The GPU's memory is the bottleneck: a larger --batch-size reads the weights once for more rows.";
    case Bound::disk:
      return "The disk is the bottleneck: put the samples and --work-dir on a faster one, or use fewer --samples.";
    case Bound::transfer:
      return "Copies between host and device are the bottleneck: a larger --batch-size makes fewer and larger ones.";
    case Bound::contention:
    case Bound::waiting:
      return "The GPU waits for the host: a larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_tuning(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic is the bottleneck: --set device-precision=tf32 or bfloat16 multiplies faster, more "
             "devices share the rows, and fewer --set num-iterations take less time.";
    case Bound::memory:
      return "The GPU's memory is the bottleneck: more devices share the rows, and fewer --set num-iterations take "
             "less "
             "time.";
    case Bound::disk:
      return "The disk is the bottleneck: put --work-dir on a faster one, or raise --memory-budget so that samples are "
             "spooled in memory.";
    case Bound::transfer:
      return "Copies of samples to the GPU are the bottleneck: --set finetune-form=gram copies each sample once, and "
             "fewer "
             "--set num-iterations copy less.";
    case Bound::contention:
    case Bound::waiting:
      return "The GPU waits for the host, which runs the model between layers: --threads uses more cores if there are "
             "any.";
  }
  return {};
}

std::string_view advice_on_reading(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk is the bottleneck: put the model and --work-dir on a faster one.";
    case Bound::contention:
    case Bound::waiting:
      return "One thread works here and mostly waits for the disk: put the model and --work-dir on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_writing(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk is the bottleneck: put --output on a faster one.";
    case Bound::contention:
    case Bound::waiting: return "One thread works here and mostly waits for the disk: put --output on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_other(Bound bound) {
  switch (bound) {
    case Bound::compute: return "The processor is the bottleneck: --threads uses more cores if there are any.";
    case Bound::memory: return "Main memory is the bottleneck: fewer --workers leave more of the cache to each.";
    case Bound::disk: return "The disk is the bottleneck: put --work-dir on a faster one.";
    case Bound::transfer:
      return "Copies between host and device are the bottleneck: a larger --batch-size makes fewer and larger ones.";
    case Bound::contention:
    case Bound::waiting: return "No resource is fully used: more --workers or --threads may help.";
  }
  return {};
}

/// `idle`: not even one thread was busy.
std::string_view advice_for(Bound bound, std::string_view stage, bool busy, bool idle) {
  if (bound == Bound::contention)
    return "Other programs kept the processor busy, so that times tell little: run it again on a free machine, or with "
           "fewer --threads.";
  switch (kind_of(stage)) {
    case Kind::samples: return advice_on_samples(bound, busy);
    case Kind::device: return advice_on_device(bound);
    case Kind::tuning_on_device: return advice_on_tuning(bound);
    case Kind::reading: return bound == Bound::waiting && !idle ? kModelAlone : advice_on_reading(bound);
    case Kind::writing: return bound == Bound::waiting && !idle ? kModelAlone : advice_on_writing(bound);
    case Kind::model: return kModelAlone;
    case Kind::other: return advice_on_other(bound);
  }
  return {};
}

}  // namespace

std::string_view bound_name(Bound bound) noexcept {
  switch (bound) {
    case Bound::compute: return "compute";
    case Bound::memory: return "memory";
    case Bound::disk: return "disk";
    case Bound::transfer: return "transfer";
    case Bound::waiting: return "waiting";
    case Bound::contention: return "contention";
  }
  return "unknown";
}

Bottleneck find_bottleneck(const Work& work, const MachinePeaks& peaks, std::string_view stage) {
  const std::array<std::pair<Bound, double>, 4> shares{
      {{Bound::compute, share_of(work.flops, peaks.flops_per_second, work.seconds)},
       {Bound::memory, share_of(work.memory_bytes, peaks.memory_bytes_per_second, work.seconds)},
       {Bound::disk, share_of(work.disk_bytes, peaks.disk_bytes_per_second, work.seconds)},
       {Bound::transfer, share_of(work.bus_bytes, peaks.bus_bytes_per_second, work.seconds)}}};
  auto [bound, share] =
      *std::max_element(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool no_pace = share < kLeastShare;
  const bool busy = no_pace && share_of(work.cpu_seconds, std::max(peaks.threads, 1), work.seconds) >= kBusyShare;
  const bool idle = work.cpu_seconds < kBusyShare * work.seconds;
  if (busy) {
    bound = Bound::compute;
    share = shares[0].second;
  } else if (no_pace) {
    const bool pressed = work.seconds > 0 && work.pressure_seconds >= kPressureShare * work.seconds;
    bound = pressed ? Bound::contention : Bound::waiting;
  }
  return {bound, std::min(share, 1.0), std::string(advice_for(bound, stage, busy, idle))};
}

}  // namespace detent::profile
