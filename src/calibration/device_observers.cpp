#include "calibration/device_observers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "shim/library.h"

namespace detent::calibration {
namespace {

constexpr std::uint32_t kSign = 0x80000000U;
// Values that go into a table between two readings: no counter can then run over.
constexpr std::uint64_t kMostInTable = 0xffffffffU;
// Bodies of loops make a value several times in a run; when there are no cells left, they are read in between.
constexpr std::size_t kCellsPerTap = 2;
constexpr std::size_t kLeastCells = 64;

std::int32_t key_of(std::uint32_t flipped) { return static_cast<std::int32_t>(flipped ^ kSign); }

}  // namespace

KeyRange extremes_of(const RunCell& cell) noexcept {
  if (cell.max == 0 && cell.inverted_min == 0) return {};
  return {key_of(~cell.inverted_min), key_of(cell.max)};
}

std::size_t DeviceObservers::cells_for(std::size_t taps) noexcept { return std::max(kCellsPerTap * taps, kLeastCells); }

DeviceObservers::DeviceObservers(std::vector<Observed> values, const ObserverOptions& options,
                                 CalibrationDevice& device)
    : values_(std::move(values)),
      options_(options),
      summaries_(values_.size()),
      in_table_(values_.size()),
      cells_(cells_for(values_.size())),
      table_(options.histogram ? Histogram::kTable : 0),
      tables_(device.tables(values_.size(), cells_.size(), options.histogram)) {
  pending_.reserve(cells_.size());
}

void DeviceObservers::receive(std::size_t, const data::TensorView&, const data::ParallelFor&) {
  throw internal_error("an observer of a device was given a tensor in the host's memory");
}

void DeviceObservers::receive_on_device(std::size_t tap, const data::DeviceTensorView& tensor) {
  if (tensor.type != onnx::DataType::float32)
    throw internal_error("an observer was given a tensor that is not float32");
  if (pending_.size() == cells_.size()) read_cells();
  const auto* values = static_cast<const float*>(tensor.address);
  const std::uint64_t count = tensor.size / sizeof(float);
  const std::size_t cell = pending_.size();
  pending_.push_back({tap, count});
  work_.bytes += tensor.size;
  for (std::uint64_t done = 0; done < count;) {
    std::uint64_t piece = count - done;
    if (options_.histogram) {
      if (in_table_[tap] == kMostInTable) read_table(tap, options_.votes ? early_ : summaries_[tap].histogram);
      piece = std::min(piece, kMostInTable - in_table_[tap]);
      in_table_[tap] += piece;
    }
    tables_->reduce(values + done, piece, tap, cell);
    done += piece;
  }
  // Votes need the histogram of this run alone.
  if (options_.votes) read_cells();
}

void DeviceObservers::end_sample() { read_cells(); }

void DeviceObservers::read_cells() {
  if (pending_.empty()) return;
  const std::span<RunCell> cells(cells_.data(), pending_.size());
  tables_->take_cells(cells);
  work_.bytes_to_host += cells.size_bytes();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto [tap, count] = pending_[i];
    Summary run = run_summary(count, extremes_of(cells[i]), cells[i].nan_count, cells[i].inf_count);
    check_finite(run, values_[tap], sample_, options_);
    if (options_.votes) {
      run.histogram = std::exchange(early_, {});
      read_table(tap, run.histogram);
      count_best_scales(run);
    }
    summaries_[tap].merge(run);
  }
  pending_.clear();
}

void DeviceObservers::read_table(std::size_t tap, Histogram& into) {
  if (in_table_[tap] == 0) return;
  const std::span<std::uint32_t, Histogram::kTable> counts(table_);
  tables_->take_table(tap, counts);
  work_.bytes_to_host += counts.size_bytes();
  into.add_table(counts);
  in_table_[tap] = 0;
}

Statistics DeviceObservers::statistics() {
  read_cells();
  Statistics statistics;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (options_.histogram) read_table(i, summaries_[i].histogram);
    statistics.tensors[values_[i].value] = summaries_[i];
  }
  return statistics;
}

std::unique_ptr<CalibrationDevice> open_cuda(const DeviceRequest& request) {
  const auto plugin = shim::load_cuda_plugin({});
  const auto entry = reinterpret_cast<CalibrationEntry*>(plugin.symbol(kCalibrationEntryName));
  const CalibrationCalls* calls = entry(kCalibrationVersion);
  if (calls == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return calls->open(request);
}

}  // namespace detent::calibration
