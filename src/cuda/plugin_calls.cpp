#include "cuda/plugin_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "base/text.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/launch.h"
#include "cuda/observe_kernel.h"
#include "cuda/pass_rows.h"
#include "cuda/streamed.h"
#include "solve/layers/input_descent.h"
#include "solve/solvers.h"

namespace detent::cuda {
namespace {

using calibration::Histogram;
using calibration::RunCell;

constexpr const char* kObservers = "observers";
constexpr const char* kCounters = "the counters of calibration";

std::uint64_t counter_bytes(std::size_t taps, std::size_t cells, bool tables) {
  return counted_bytes(cells * sizeof(RunCell)) +
         counted_bytes(tables ? taps * Histogram::kTable * sizeof(std::uint32_t) : 0);
}

class Tables : public calibration::DeviceTables {
 public:
  Tables(Device& device, std::size_t taps, std::size_t cells, bool with_tables)
      : device_(device),
        cells_(device.memory(), cells, kCounters),
        counters_(device.memory(), with_tables ? taps * Histogram::kTable : 0, kCounters),
        taken_(std::max(cells * sizeof(RunCell), with_tables ? Histogram::kTable * sizeof(std::uint32_t) : 0),
               device.pins()) {
    clear(device_.stream(), cells_);
    clear(device_.stream(), counters_);
  }

  void reduce(const float* values, std::size_t count, std::size_t tap, std::size_t cell) override {
    if (count == 0) return;
    device_.current();
    RunCell* const into = cells_.data() + cell;
    const unsigned blocks = observe_blocks(count, device_.facts().multiprocessors);
    device_.clock().queued(device_.stream(), DeviceLane::compute, kObservers, {count * sizeof(float), 0}, [&] {
      if (counters_.size() == 0) {
        launch(device_.stream(), Observe<false>{values, count, into, nullptr}, blocks, kObserveBytes<false>);
      } else {
        launch(device_.stream(), Observe<true>{values, count, into, table(tap)}, blocks, kObserveBytes<true>);
      }
    });
  }

  void take_cells(std::span<RunCell> cells) override {
    take(cells, cells_.data());
    device_.stream().clear(cells_.data(), cells.size_bytes());
  }

  void take_table(std::size_t tap, std::span<std::uint32_t, Histogram::kTable> counts) override {
    take(std::span<std::uint32_t>(counts), table(tap));
    device_.stream().clear(table(tap), counts.size_bytes());
  }

 private:
  std::uint32_t* table(std::size_t tap) const { return counters_.data() + tap * Histogram::kTable; }

  template <class T>
  void take(std::span<T> to, const T* from) const {
    const auto pinned = taken_.as<T>().first(to.size());
    device_.clock().queued(device_.stream(), DeviceLane::copy, "counts to the host", {pinned.size_bytes(), 0},
                           [&] { device_.stream().download(pinned.data(), from, pinned.size_bytes()); });
    device_.stream().wait();
    device_.clock().report_finished_work();
    std::copy(pinned.begin(), pinned.end(), to.begin());
  }

  Device& device_;
  DeviceArray<RunCell> cells_;
  DeviceArray<std::uint32_t> counters_;
  HostMemory taken_;
};

class Calibration : public calibration::CalibrationDevice {
 public:
  explicit Calibration(const calibration::DeviceRequest& request)
      : device_(request.number, request.memory_budget, request.activity, request.pins) {
    place_.provider = device_.facts().provider;
    place_.memory = device_.facts().memory;
    place_.ordinal = request.number;
    place_.stream = device_.stream().handle();
    place_.tf32 = request.tf32;
    place_.copy = [this](void* to, const void* from, std::size_t bytes) { device_.stream().copy(to, from, bytes); };
    if (request.activity != nullptr) {
      const auto cells = calibration::DeviceObservers::cells_for(request.taps);
      request.activity->add_memory_estimate(request.number, counter_bytes(request.taps, cells, request.tables));
    }
    if (!request.memory_budget) return;
    const std::uint64_t counters =
        counter_bytes(request.taps, calibration::DeviceObservers::cells_for(request.taps), request.tables);
    device_.memory().require(counters, kCounters);
    place_.memory_limit = *request.memory_budget - counters;
  }

  std::string name() const override { return fmt::format("cuda:{} ({})", device_.number(), device_.facts().name); }
  const shim::Device& place() const override { return place_; }
  std::unique_ptr<calibration::DeviceTables> tables(std::size_t taps, std::size_t cells, bool with_tables) override {
    return std::make_unique<Tables>(device_.current(), taps, cells, with_tables);
  }

 private:
  Device device_;
  shim::Device place_;
};

std::unique_ptr<calibration::CalibrationDevice> open_calibration(const calibration::DeviceRequest& request) {
  return std::make_unique<Calibration>(request);
}

constexpr const char* kMeasurement = "a measurement";
constexpr int kTurns = 4;
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
constexpr std::int64_t kLeastMatrix = 256;

/// Seconds of one turn of `work`, by the device's clock; what comes first is not counted.
double seconds_of(const Stream& stream, const std::function<void()>& work) {
  Event begin(true), end(true);
  work();
  begin.record(stream);
  for (int turn = 0; turn < kTurns; ++turn) work();
  end.record(stream);
  end.wait();
  return 1e-3 * end.milliseconds_since(begin) / kTurns;
}

double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

/// `rate_at(size, &seconds)` for sizes that double from `size` on, until a turn takes long enough, or `most` is passed;
/// the rate at the last.
template <class Size, class RateAt>
double grown_rate(Size size, Size most, double enough, const RateAt& rate_at) {
  double seconds = 0;
  double found = rate_at(std::min(size, most), seconds);
  while (2 * size <= most && seconds < enough) {
    size *= 2;
    found = rate_at(size, seconds);
  }
  return found;
}

double memory_rate(Device& device, std::size_t most, double enough) {
  return grown_rate(kLeastBytes, most, enough, [&](std::size_t bytes, double& seconds) {
    const DeviceMemory from(device.memory(), bytes, kMeasurement), to(device.memory(), bytes, kMeasurement);
    device.stream().clear(from.address(), bytes);
    seconds = seconds_of(device.stream(), [&] { device.stream().copy(to.address(), from.address(), bytes); });
    return rate(2 * static_cast<double>(bytes), seconds);
  });
}

double bus_rate(Device& device, std::size_t most, double enough) {
  return grown_rate(kLeastBytes, most, enough, [&](std::size_t bytes, double& seconds) {
    const HostMemory from(bytes);
    const DeviceMemory to(device.memory(), bytes, kMeasurement);
    seconds =
        seconds_of(device.stream(), [&] { device.stream().upload(to.address(), from.as<std::byte>().data(), bytes); });
    return rate(static_cast<double>(bytes), seconds);
  });
}

template <class T>
double product_rate(Device& device, DevicePrecision precision, std::int64_t most, double enough) {
  return grown_rate(kLeastMatrix, most, enough, [&](std::int64_t n, double& seconds) {
    const auto count = static_cast<std::size_t>(n * n);
    const DeviceArray<T> a(device.memory(), count, kMeasurement), b(device.memory(), count, kMeasurement);
    const DeviceArray<float> c(device.memory(), count, kMeasurement);
    clear(device.stream(), a);  // zeros: what is not a number could be slower, or faster
    clear(device.stream(), b);
    const Matmul product(device, {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n}, precision);
    seconds = seconds_of(device.stream(), [&] { product.run(a.data(), b.data(), c.data()); });
    return rate(2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n), seconds);
  });
}

profile::DevicePeaks measure(int number, DevicePrecision precision) {
  Device device(number, std::nullopt);
  return measure_peaks(device, precision);
}

}  // namespace

const calibration::CalibrationCalls& calibration_calls() {
  static constexpr calibration::CalibrationCalls kCalls{&open_calibration};
  return kCalls;
}

profile::DevicePeaks measure_peaks(Device& device, DevicePrecision precision, const PeakLimits& limits) {
  const std::uint64_t left = (device.memory().limit() - device.memory().used()) / 8;
  const auto bytes = [&](std::size_t most) { return static_cast<std::size_t>(std::min<std::uint64_t>(most, left)); };
  const auto square = static_cast<std::int64_t>(std::sqrt(static_cast<double>(left / sizeof(float))));
  const auto matrix = std::min(limits.most_matrix, square);
  profile::DevicePeaks peaks;
  peaks.memory_bytes_per_second = memory_rate(device, bytes(limits.most_memory_bytes), limits.enough_seconds);
  peaks.bus_bytes_per_second = bus_rate(device, bytes(limits.most_bus_bytes), limits.enough_seconds);
  peaks.flops_per_second = precision == DevicePrecision::bfloat16
                               ? product_rate<Bfloat16>(device, precision, matrix, limits.enough_seconds)
                               : product_rate<float>(device, precision, matrix, limits.enough_seconds);
  return peaks;
}

const profile::PeaksCalls& peaks_calls() {
  static constexpr profile::PeaksCalls kCalls{&measure};
  return kCalls;
}

namespace {

class Storage : public store::DeviceStorage {
 public:
  Storage(int number, GdsMode mode, const std::filesystem::path& directory)
      : device_(number, std::nullopt), reader_(device_, mode, directory) {}

  void read(const store::RecordOnDisk& record, void* to) override { reader_.read(record, to); }
  void* memory(std::size_t size) override {
    if (size > size_) {
      memory_ = DeviceMemory();
      memory_ = DeviceMemory(device_.memory(), size, "what is read");
      size_ = size;
    }
    return memory_.address();
  }
  const store::DeviceRoute& route() const override { return reader_.route(); }

 private:
  Device device_;
  RecordReader reader_;
  DeviceMemory memory_;
  std::size_t size_ = 0;
};

std::unique_ptr<store::DeviceStorage> open_storage(int device, GdsMode mode, const std::filesystem::path& directory) {
  return std::make_unique<Storage>(device, mode, directory);
}

using solve::GramForm;
using solve::GramFormOrRawInputs;
using solve::LayerGeometry;
using solve::LayerSamples;
using solve::QuantizedWeights;
using solve::Shape;
using solve::Solution;
using solve::SolveControl;

static_assert(kMemoryUnit == solve::kDeviceMemoryUnit);

class CudaSolver final : public solve::LayerSolver {
 public:
  CudaSolver(const DeviceConfig& config, const solve::Kernels& kernels, profile::DeviceActivity* activity)
      : config_(config), kernels_(kernels) {
    for (const int number : config.cuda)
      devices_.push_back(std::make_unique<Device>(number, config.memory_budget, activity, config.pin_memory));
    readers_ = std::make_unique<RecordReaders>(devices_, config.gds);
  }

  // Each layer's sums go where least is taken, so half of every budget can be filled.
  std::uint64_t sums_budget() const override {
    std::uint64_t bytes = 0;
    for (const auto& device : devices_) bytes += device->memory().limit() / 2;
    return bytes;
  }

  void check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape, bool streamed,
                    const FinetuneConfig& config) override;

  std::unique_ptr<solve::GramSums> sums(const LayerGeometry& geometry, std::size_t) override {
    return std::make_unique<GramSumsOnDevice>(device_for_sums(), geometry);
  }

  Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& form, std::span<const float> bias,
                 const FinetuneConfig& config, const SolveControl& control) override {
    if (const auto* solver = solve::find_solver(config.solver); solver != nullptr && !runs_on_devices(config.solver)) {
      solved_by_cpu_ = solver->name;
    }
    const auto* gram = std::get_if<GramForm>(&form);
    if (gram == nullptr) return solve::solve(weights, form, bias, config, kernels_, control);
    GramMethodsOnDevices methods(devices_, weights, *gram, bias, config_.precision, kernels_, control);
    return solve::solve(weights, *gram, bias, config, methods);
  }

  Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                          LayerSamples& samples, const FinetuneConfig& config, const SolveControl& control) override;

  double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                              LayerSamples& samples, const SolveControl& control) override;

  std::vector<std::string> notes() const override;

 private:
  /// Layers that are solved from one pass have sums side by side: each where least is taken, the first of equals. Which
  /// device it is makes no difference to sums.
  Device& device_for_sums() {
    return **std::min_element(devices_.begin(), devices_.end(),
                              [](const auto& a, const auto& b) { return a->memory().used() < b->memory().used(); });
  }

  static void foretell(Device& device, std::uint64_t bytes) {
    if (device.clock().log() != nullptr) device.clock().log()->add_memory_estimate(device.number(), bytes);
  }

  DeviceConfig config_;
  const solve::Kernels& kernels_;
  Devices devices_;
  std::unique_ptr<RecordReaders> readers_;
  std::string solved_by_cpu_;  // the method's name, where the CPU solved a layer
  bool streamed_ = false;      // whether one was solved in mini-batches
  bool descended_by_cpu_ = false;
};

void CudaSolver::check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape,
                              bool streamed, const FinetuneConfig& config) {
  const auto need = solve::device_need(geometry, input_shape, streamed, config, config_.precision, devices_.size());
  if (!streamed) {
    Device& device = device_for_sums();
    const std::uint64_t there = device.libraries().matmuls ? solve::kMatmulScratch : 0;
    device.memory().require(need.sums - there, layer);
    foretell(device, device.memory().used() + need.sums - there);
  }
  for (std::size_t i = 0; i < need.solving.size(); ++i) {
    // All sums are on the host by then.
    MemoryBudget& memory = devices_[i]->memory();
    if (need.solving[i] > memory.limit()) memory.require(need.solving[i], layer);
    foretell(*devices_[i], need.solving[i]);
  }
}

Solution CudaSolver::solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                    std::span<const float> bias, LayerSamples& samples, const FinetuneConfig& config,
                                    const SolveControl& control) {
  streamed_ = true;
  descended_by_cpu_ = descended_by_cpu_ || (solve::uses_sample_descent(config) && !solve::descends_by_sums(geometry));
  return cuda::solve_streamed(devices_, config_, {weights, geometry, samples, &*readers_}, bias, config, kernels_,
                              control);
}

double CudaSolver::reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                        const Solution& solution, LayerSamples& samples, const SolveControl& control) {
  return cuda::reconstruction_error(devices_, {weights, geometry, samples}, solution, control);
}

std::vector<std::string> CudaSolver::notes() const {
  std::vector<std::string> notes;
  for (const auto& device : devices_) {
    notes.push_back(fmt::format("fine-tuning ran on cuda:{} ({}) and used at most {}", device->number(),
                                device->facts().name, format_size(device->memory().peak())));
  }
  const auto reads = readers_->notes();
  notes.insert(notes.end(), reads.begin(), reads.end());
  if (streamed_ && reads.empty() && config_.gds == GdsMode::on)
    notes.emplace_back("no spooled sample was read by GPUDirect Storage: all were in host memory");
  if (!solved_by_cpu_.empty()) {
    notes.push_back(
        fmt::format("the GPU summed the samples of layers; {} itself was solved by the CPU", solved_by_cpu_));
  }
  if (descended_by_cpu_)
    notes.emplace_back(
        "mini-batches ran on the GPU; coordinate descent after them ran on the CPU for layers of long rows");
  if (streamed_ && config_.precision == DevicePrecision::bfloat16) {
    notes.emplace_back(
        "in mini-batches the GPU used bfloat16 for matrix products whose rows have multiples of 8 elements, and TF32 "
        "for convolutions and all others");
  }
  return notes;
}

}  // namespace

const store::StorageCalls& storage_calls() {
  static constexpr store::StorageCalls kCalls{&open_storage};
  return kCalls;
}

std::unique_ptr<solve::LayerSolver> make_solver(const DeviceConfig& config, const solve::Kernels& kernels,
                                                profile::DeviceActivity* activity) {
  return std::make_unique<CudaSolver>(config, kernels, activity);
}

}  // namespace detent::cuda
