#include "cuda/streamed.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "cuda/gram_methods.h"
#include "cuda/gram_sums.h"
#include "cuda/pass_rows.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/layer_solver.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"
#include "store/buffers.h"

namespace detent::cuda {
namespace {

using solve::RoundingVariables;
using solve::SampleRef;
using solve::Solution;
using solve::SolveControl;

std::vector<solve::RowRange> shares(const StreamedLayer& layer, std::size_t devices) {
  return share_rows(layer.weights.rows, static_cast<std::size_t>(layer.geometry.groups), devices);
}

LayerSample host_sample(const SampleRef& sample) { return {&sample.input_shape, sample.input, sample.target}; }

class StreamedOnDevices final : public solve::StreamedIterations {
 public:
  StreamedOnDevices(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer, std::span<const float> bias,
                    const FinetuneConfig& config, const SolveControl& control)
      : devices_(devices),
        on_(on),
        layer_(layer),
        config_(config),
        control_(control),
        power_(solve::input_power(layer.samples)),
        variables_(layer.weights, bias, config, power_),
        steps_(step_numbers(config)),
        batches_(layer.samples, layer.geometry, config, control.threads, layer.readers != nullptr) {}

  double iterate(std::size_t first, std::size_t end) override {
    make_ready(first);
    on_device_ = true;
    for (std::size_t at = first; at < end; ++at) {
      solve::check_stop(control_);
      run(batches_.load(at));
    }
    double sum = 0;
    for (auto& part : parts_) {
      part->pass().device().current();
      sum += part->pass().take_losses();
    }
    return sum / static_cast<double>(end - first);
  }

  RoundingVariables& variables() override {
    if (std::exchange(on_device_, false)) {
      for (auto& part : parts_) part->get(variables_);
    }
    return variables_;
  }
  std::uint64_t& choice() override { return choice_; }
  void changed() override {
    on_device_ = false;
    parts_.clear();  // made anew in the way that an earlier process chose
  }

 private:
  void make_ready(std::size_t iteration) {
    if (!parts_.empty()) return;
    if (static_cast<PassKind>(choice_) == PassKind::undecided) choice_ = static_cast<std::uint64_t>(choose());
    const auto ranges = shares(layer_, devices_.size());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      parts_.push_back(std::make_unique<TunedRows>(*devices_[i], layer_.weights, layer_.geometry, ranges[i],
                                                   static_cast<PassKind>(choice_), on_.precision, config_, power_,
                                                   steps_));
      parts_.back()->put(variables_, iteration);
    }
  }

  /// By the first sample, on the first device.
  PassKind choose() {
    const SampleRef sample = layer_.samples.get(0);
    if (!Convolution::supports(layer_.geometry, sample.input_shape)) return PassKind::patches;
    if (on_.layout != DeviceLayout::automatic)
      return on_.layout == DeviceLayout::nchw ? PassKind::nchw : PassKind::nhwc;
    const LayerSample host = host_sample(sample);
    const auto rows = shares(layer_, devices_.size()).front();
    PassKind best = PassKind::patches;  // where the library has neither
    double least = 0;
    for (const PassKind way : {PassKind::nchw, PassKind::nhwc}) {
      try {
        PassRows pass(*devices_[0], layer_.weights, layer_.geometry, rows, way, on_.precision);
        const double time = pass.time(pass.pass_for({&host, 1}), host);
        if (best == PassKind::patches || time < least) {
          best = way;
          least = time;
        }
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::device) throw;
      }
    }
    return best;
  }

  void run(const SampleBatch& batch) {
    std::vector<LayerSample> samples;
    std::size_t positions = 0;
    for (const auto& drawn : batch) {
      positions += drawn.positions;
      if (drawn.resting) {
        read_from(drawn.resting->file.parent_path());
        samples.push_back({.shape = &drawn.shape(), .resting = &*drawn.resting});
      } else {
        samples.push_back({&drawn.shape(), {drawn.input(), drawn.sample.input.size()}, drawn.sample.target});
      }
    }
    if (positions == 0) {  // nothing to learn from
      for (auto& part : parts_) part->skip();
      return;
    }
    for (auto& part : parts_) part->begin(samples);
    for (const auto& sample : samples) {
      for (auto& part : parts_) part->add(sample, positions);
    }
    for (auto& part : parts_) part->end();
  }

  void read_from(const std::filesystem::path& directory) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i]->pass().read_by(layer_.readers->of(i, directory));
  }

  Devices& devices_;
  const DeviceConfig& on_;
  StreamedLayer layer_;
  const FinetuneConfig& config_;
  const SolveControl& control_;
  double power_;
  RoundingVariables variables_;
  StepNumbers steps_;
  SampleBatches batches_;
  std::uint64_t choice_ = static_cast<std::uint64_t>(PassKind::undecided);
  std::vector<std::unique_ptr<TunedRows>> parts_;
  bool on_device_ = false;  // where the latest variables are
};

/// All samples through a solution, by positions and in float32. For each device's rows: losses, and sums of
/// factor · 2 (y − target) for each row if they are asked for.
struct Evaluation {
  double loss = 0;
  std::uint64_t outputs = 0;
  std::vector<double> row_sums;
};

Evaluation evaluate(Devices& devices, const StreamedLayer& layer, const Solution& solution, float factor, bool row_sums,
                    const SolveControl& control) {
  const auto ranges = shares(layer, devices.size());
  struct Part {
    std::unique_ptr<PassRows> pass;
    DeviceArray<float> bias, steps;
    DeviceArray<double> sums;
  };
  std::vector<Part> parts(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    Part& p = parts[i];
    const auto rows = ranges[i];
    p.pass = std::make_unique<PassRows>(*devices[i], layer.weights, layer.geometry, rows, PassKind::patches,
                                        DevicePrecision::float32);
    const Stream& stream = devices[i]->stream();
    std::vector<float> steps(p.pass->values());
    for (std::size_t at = 0; at < steps.size(); ++at) {
      const std::size_t m = rows.first + at / layer.weights.fan_in;
      steps[at] = static_cast<float>(solution.integers[rows.first * layer.weights.fan_in + at] -
                                     layer.weights.zero_of(m, at % layer.weights.fan_in));
    }
    p.steps = p.pass->array<float>(steps.size());
    upload<float>(stream, p.steps, steps);
    if (!solution.bias.empty()) {
      p.bias = p.pass->array<float>(rows.count());
      upload<float>(stream, p.bias, std::span(solution.bias).subspan(rows.first, rows.count()));
    }
    p.sums = p.pass->array<double>(row_sums ? rows.count() : 0);
    clear(stream, p.sums);
    p.pass->fill_filter(p.pass->pass_for({}), nullptr, p.steps.data());
    stream.wait();
  }
  Evaluation result;
  for (std::size_t s = 0; s < layer.samples.count(); ++s) {
    solve::check_stop(control);
    const SampleRef sample = layer.samples.get(s);
    result.outputs += sample.target.size();
    const LayerSample host = host_sample(sample);
    for (Part& p : parts) {
      p.pass->device().current();
      PassRows::Task task;
      task.bias = p.bias.size() > 0 ? p.bias.data() : nullptr;
      task.factor = factor;
      task.row_sums = row_sums ? p.sums.data() : nullptr;
      p.pass->run(p.pass->pass_for({}), host, task);
    }
  }
  for (Part& p : parts) {
    p.pass->device().current();
    result.loss += p.pass->take_losses();
    std::vector<double> sums(p.sums.size());
    download<double>(p.pass->device().stream(), sums, p.sums);
    p.pass->device().stream().wait();
    result.row_sums.insert(result.row_sums.end(), sums.begin(), sums.end());
  }
  return result;
}

/// The best bias for given integers: as it was, and the mean of what is left.
std::vector<float> best_bias(Devices& devices, const StreamedLayer& layer, const Solution& solution,
                             const SolveControl& control) {
  // With this factor the slope is target − output.
  const Evaluation found = evaluate(devices, layer, solution, -0.5F, true, control);
  const double positions = static_cast<double>(found.outputs) / static_cast<double>(layer.weights.rows);
  std::vector<float> bias = solution.bias;
  for (std::size_t m = 0; m < bias.size() && positions > 0; ++m) {
    bias[m] = static_cast<float>(bias[m] + found.row_sums[m] / positions);
  }
  return bias;
}

/// The positions that the CPU's descent takes, summed.
solve::GramForm sums_for_descent(Device& device, const StreamedLayer& layer, const FinetuneConfig& config,
                                 const SolveControl& control) {
  GramSumsOnDevice sums(device.current(), layer.geometry);
  for (std::size_t s = 0; s < layer.samples.count(); ++s) {
    solve::check_stop(control);
    const SampleRef sample = layer.samples.get(s);
    sums.add(sample.input_shape, sample.input, sample.target,
             solve::descent_positions(layer.geometry, sample.input_shape, layer.samples.count(), s, config.seed));
  }
  return sums.take();
}

/// As solve::InputDescent does; whether the form has changed.
bool add_ridge(solve::GramForm& form, const solve::QuantizedWeights& weights) {
  const std::size_t k = weights.fan_in, group_rows = weights.rows / form.groups;
  bool changed = false;
  for (std::size_t g = 0; g < form.groups; ++g) {
    float* const matrix = form.gram.data() + g * k * k;
    double power = 0;
    for (std::size_t j = 0; j < k; ++j) power += matrix[j * k + j];
    const float ridge = solve::descent_ridge(power, k, form.positions);
    if (ridge == 0) continue;
    changed = true;
    for (std::size_t j = 0; j < k; ++j) matrix[j * k + j] += ridge;
    for (std::size_t at = g * group_rows * k; at < (g + 1) * group_rows * k; ++at)
      form.cross[at] += ridge * weights.values[at];
  }
  return changed;
}

/// As solve::descend_on_samples(), by sums over the same positions.
solve::Integers descend_by_sums(Devices& devices, const StreamedLayer& layer, const Solution& solution,
                                const FinetuneConfig& config, const solve::Kernels& kernels,
                                const SolveControl& control) {
  solve::GramForm form = sums_for_descent(*devices.front(), layer, config, control);
  if (form.positions == 0) return solution.integers;
  FinetuneConfig fixed_bias = config;
  fixed_bias.update_bias = false;
  std::optional<GramMethodsOnDevices> methods;  // hold the form's matrix on the devices
  const auto begin = [&] {
    methods.emplace(devices, layer.weights, form, solution.bias, DevicePrecision::float32, kernels, control);
  };
  begin();
  solve::Integers better =
      methods->better_rows(fixed_bias, solution.integers, solve::nearest(layer.weights, {}).integers);
  if (add_ridge(form, layer.weights)) begin();
  return methods->coordinate_descent(fixed_bias, std::move(better));
}

Solution in_mini_batches(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer,
                         std::span<const float> bias, const FinetuneConfig& config, const SolveControl& control) {
  StreamedOnDevices problem(devices, on, layer, bias, config, control);
  return solve::run(problem, config, control);
}

}  // namespace

Solution solve_streamed(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer,
                        std::span<const float> bias, const FinetuneConfig& config, const solve::Kernels& kernels,
                        const SolveControl& control) {
  const solve::Solver* solver = solve::find_solver(config.solver);
  if (solver == nullptr || layer.samples.count() == 0) return solve::nearest(layer.weights, bias);
  solve::check_has_streamed_form(*solver);
  Solution solution = in_mini_batches(devices, on, layer, bias, config, control);
  if (solve::uses_sample_descent(config)) {
    solution.integers = solve::descends_by_sums(layer.geometry)
                            ? descend_by_sums(devices, layer, solution, config, kernels, control)
                            : solve::descend_on_samples(layer.weights, layer.geometry, solution, layer.samples, config,
                                                        kernels, control);
  }
  if (config.solver == WeightSolver::adaround && config.update_bias && !bias.empty()) {
    solution.bias = best_bias(devices, layer, solution, control);
  }
  return solution;
}

double reconstruction_error(Devices& devices, const StreamedLayer& layer, const Solution& solution,
                            const SolveControl& control) {
  const Evaluation found = evaluate(devices, layer, solution, 0.0F, false, control);
  return found.outputs == 0 ? 0 : found.loss / static_cast<double>(found.outputs);
}

namespace {

constexpr std::uint64_t kBudgetOfProbe = std::uint64_t{64} << 20;

/// Past the host. One read of the library does not keep a fast disk busy, so large payloads are read in parts by
/// several threads.
class StorageReader : public store::DeviceReader {
 public:
  StorageReader(Device& device, const shim::CuFile& library) : device_(device), library_(library) {}

  void read(const store::RecordOnDisk& record, void* to) override {
    use(record.file);
    const std::uint64_t parts = std::clamp<std::uint64_t>(record.size / kPart, 1, kMostParts);
    const std::uint64_t length = store::whole_blocks((record.size + parts - 1) / parts);
    std::vector<std::future<void>> others;
    for (std::uint64_t begin = length; begin < record.size; begin += length) {
      others.push_back(std::async(std::launch::async, [=, this, &record] {
        device_.current();
        read_part(record, begin, std::min(begin + length, record.size), to);
      }));
    }
    read_part(record, 0, std::min(length, record.size), to);
    for (auto& other : others) other.get();
  }

 private:
  static constexpr std::uint64_t kPart = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kMostParts = 8;

  void read_part(const store::RecordOnDisk& record, std::uint64_t begin, std::uint64_t end, void* to) const {
    while (begin < end) {
      const auto n = known_->read(static_cast<std::byte*>(to) + begin, end - begin, record.offset + begin);
      if (n <= 0) {
        throw resource_error(fmt::format("cannot read '{}' by GPUDirect Storage: {}", record.file.string(),
                                         n == 0 ? "the file ends too soon" : shim::CuFile::reason(n)),
                             "choose a directory on another disk with --work-dir");
      }
      begin += static_cast<std::uint64_t>(n);
    }
  }

  // The records of a layer are in one file.
  void use(const std::filesystem::path& path) {
    if (known_ && path == path_) return;
    known_.reset();
    file_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    std::string refusal;
    if (!file_.valid()) {
      refusal = errno_text(errno);
    } else {
      known_ = library_.file(file_.get(), refusal);
    }
    if (!known_) throw resource_error(fmt::format("cannot open '{}': {}", path.string(), refusal));
    path_ = path;
  }

  Device& device_;
  const shim::CuFile& library_;
  std::filesystem::path path_;
  UniqueFd file_;
  std::unique_ptr<shim::CuFile::File> known_;
};

}  // namespace

/// Pinned memory that the device's second queue copies from.
class RecordReader::Buffers : public store::BounceBuffers {
 public:
  explicit Buffers(Device& device) : device_(device), memory_(kSlots * kPiece, device.pins()) {}

  std::span<std::byte> slot(std::size_t number) override {
    return memory_.as<std::byte>().subspan(number * kPiece, kPiece);
  }
  void upload(std::size_t number, std::size_t bytes, void* to) override {
    device_.clock().queued(device_.copies(), DeviceLane::copy, "stored sample", {bytes, 0},
                           [&] { device_.copies().upload(to, slot(number).data(), bytes); });
    copied_[number].record(device_.copies());
    copies_[number] = true;
  }
  void wait(std::size_t number) override {
    if (!copies_[number]) return;
    copied_[number].wait();
    copies_[number] = false;
  }

 private:
  Device& device_;
  HostMemory memory_;
  std::array<Event, kSlots> copied_;
  std::array<bool, kSlots> copies_{};
};

namespace {

/// A reader with the buffers that it reads through.
template <class Buffers>
class PinnedReader : public store::DeviceReader {
 public:
  PinnedReader(Device& device, store::DiskAccess access) : buffers_(device), reader_(access, buffers_) {}
  void read(const store::RecordOnDisk& record, void* to) override { reader_.read(record, to); }

 private:
  Buffers buffers_;
  store::BounceReader reader_;
};

}  // namespace

RecordReader::RecordReader(Device& device, GdsMode mode, const std::filesystem::path& directory,
                           const shim::CuFilePlaces& places)
    : device_(device),
      places_(places),
      route_(store::choose_route(
          mode, {[&] { return refusal(directory); }, [&] { return store::probe_access(directory, kBudgetOfProbe); },
                 [&](const store::DeviceRoute& route) { return rate(route, directory); }})),
      reader_(open(route_)) {}

RecordReader::~RecordReader() = default;

void RecordReader::read(const store::RecordOnDisk& record, void* to) {
  if (record.size > 0) reader_->read(record, to);
}

std::string RecordReader::note() const {
  return fmt::format("cuda:{} read spooled samples by {}: {}", device_.number(), route_.name(), route_.reason);
}

// Reading a few bytes that way tells most.
std::string RecordReader::refusal(const std::filesystem::path& directory) {
  std::string why;
  cufile_ = shim::CuFile::open(why, places_);
  if (!cufile_) return why;
  try {
    const store::ProbePayload payload(directory);
    const DeviceMemory to(device_.memory(), store::ProbePayload::kBytes, "a test of GPUDirect Storage");
    StorageReader(device_, *cufile_).read(payload.record(), to.address());
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

double RecordReader::rate(const store::DeviceRoute& route, const std::filesystem::path& directory) {
  const store::ProbePayload payload(directory);
  const DeviceMemory to(device_.memory(), store::ProbePayload::kBytes, "a test of reading");
  return store::measure_reads(*open(route), payload, to.address());
}

std::unique_ptr<store::DeviceReader> RecordReader::open(const store::DeviceRoute& route) {
  if (route.direct_storage) return std::make_unique<StorageReader>(device_, *cufile_);
  return std::make_unique<PinnedReader<Buffers>>(device_, route.access);
}

SampleBatches::SampleBatches(solve::LayerSamples& samples, const solve::LayerGeometry& geometry,
                             const FinetuneConfig& config, std::size_t threads, bool from_disk)
    : samples_(samples),
      geometry_(geometry),
      config_(config),
      threads_(threads),
      from_disk_(from_disk && config.drop_ratio >= 1),
      order_(samples.count(), config.seed) {}

SampleBatch SampleBatches::load(std::size_t iteration) {
  const std::size_t size = std::max<std::size_t>(config_.batch_size, 1);
  SampleBatch batch;
  for (std::size_t b = 0; b < size; ++b) batch.push_back(draw(static_cast<std::uint64_t>(iteration) * size + b));
  prefetch(static_cast<std::uint64_t>(iteration + 1) * size);
  return batch;
}

// As many samples as there are workers, from this turn on.
void SampleBatches::prefetch(std::uint64_t turn) {
  const std::uint64_t end =
      static_cast<std::uint64_t>(config_.num_iterations) * std::max<std::size_t>(config_.batch_size, 1);
  const auto coming = order_.coming(turn, end, config_.num_workers, [&](std::size_t index) {
    return from_disk_ && samples_.resting(index).has_value();
  });
  if (!coming.empty()) samples_.prefetch(coming);
}

Drawn SampleBatches::draw(std::uint64_t turn) {
  Drawn drawn;
  const std::size_t index = order_.at(turn);
  if (from_disk_) drawn.resting = samples_.resting(index);
  if (drawn.resting) {
    drawn.positions = drawn.resting->parts[1].size / sizeof(float) / static_cast<std::size_t>(geometry_.outputs);
    return drawn;
  }
  drawn.sample = samples_.get(index);
  drawn.positions = drawn.sample.target.size() / static_cast<std::size_t>(geometry_.outputs);
  if (config_.drop_ratio < 1) drawn.mixed = solve::mixed_inputs(drawn.sample, config_, turn, threads_);
  return drawn;
}

}  // namespace detent::cuda
