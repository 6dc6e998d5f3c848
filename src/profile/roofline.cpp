#include "profile/roofline.h"

#include <algorithm>
#include <array>
#include <utility>

namespace detent::profile {
namespace {

using Bound = Verdict::Bound;

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
      return busy ? "The processor is busy with more than the model's products and sums: --method minmax needs no "
                    "histograms (--no-histogram for a statistics file), and --samples takes fewer samples."
                  : "The processor's arithmetic sets the pace: --threads gives it more cores where there are any, "
                    "--samples takes fewer samples.";
    case Bound::memory:
      return "Main memory sets the pace: a larger --batch-size reads the weights once for more rows, and fewer "
             "--workers leave each more of the cache.";
    case Bound::disk:
      return "The disk sets the pace: put the samples and --work-dir on a faster one, or take fewer with --samples.";
    case Bound::transfer:
      return "Copies between host and device set the pace: a larger --batch-size makes fewer and larger ones.";
    case Bound::waiting:
      return "Nothing is used to the full, threads wait for one another: more --workers run samples side by side, and "
             "a larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_device(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic sets the pace: --device-precision tf32 multiplies faster, --samples takes fewer "
             "samples.";
    case Bound::memory:
      return "The GPU's memory sets the pace: a larger --batch-size reads the weights once for more rows.";
    case Bound::disk:
      return "The disk sets the pace: put the samples and --work-dir on a faster one, or take fewer with --samples.";
    case Bound::transfer:
      return "Copies between host and device set the pace: a larger --batch-size makes fewer and larger ones.";
    case Bound::waiting:
      return "The GPU waits for the host: a larger --batch-size gives each run of the model more to do.";
  }
  return {};
}

std::string_view advice_on_tuning(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "The GPU's arithmetic sets the pace: --device-precision tf32 or bfloat16 multiplies faster, more --device "
             "share the rows, and --num-iterations takes fewer steps.";
    case Bound::memory:
      return "The GPU's memory sets the pace: more --device share the rows, and --num-iterations takes fewer steps.";
    case Bound::disk:
      return "The disk sets the pace: put --work-dir on a faster one, or raise --memory-budget so that samples wait in "
             "memory.";
    case Bound::transfer:
      return "Copies of samples to the GPU set the pace: --form gram brings each sample there once, and "
             "--num-iterations takes fewer steps.";
    case Bound::waiting:
      return "The GPU waits for the host, which runs the model between layers: --threads gives that more cores where "
             "there are any.";
  }
  return {};
}

std::string_view advice_on_reading(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk sets the pace: put the model and --work-dir on a faster one.";
    case Bound::waiting:
      return "One thread works here and mostly waits for the disk: put the model and --work-dir on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_writing(Bound bound) {
  switch (bound) {
    case Bound::disk: return "The disk sets the pace: let --output be on a faster one.";
    case Bound::waiting: return "One thread works here and mostly waits for the disk: let --output be on a faster one.";
    default: return kModelAlone;
  }
}

std::string_view advice_on_other(Bound bound) {
  switch (bound) {
    case Bound::compute: return "The processor sets the pace: --threads gives it more cores where there are any.";
    case Bound::memory: return "Main memory sets the pace: fewer --workers leave each more of the cache.";
    case Bound::disk: return "The disk sets the pace: put --work-dir on a faster one.";
    case Bound::transfer:
      return "Copies between host and device set the pace: a larger --batch-size makes fewer and larger ones.";
    case Bound::waiting: return "Nothing is used to the full: more --workers or --threads may find more to do.";
  }
  return {};
}

/// `idle`: not even one thread was busy.
std::string_view advice_for(Bound bound, std::string_view stage, bool busy, bool idle) {
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
  }
  return "unknown";
}

Verdict judge(const Work& work, const MachinePeaks& peaks, std::string_view stage) {
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
    bound = Bound::waiting;
  }
  return {bound, std::min(share, 1.0), std::string(advice_for(bound, stage, busy, idle))};
}

}  // namespace detent::profile
