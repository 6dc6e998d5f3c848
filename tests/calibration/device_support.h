// A device that is the host: the kernels' own source, run thread after thread.
#pragma once

#include <cstring>
#include <vector>

#include "calibration/device_observers.h"
#include "cuda/observe_kernel.h"

namespace detent::calibration::test {

/// How the threads of a grid follow one another; a kernel's result must not depend on it.
struct Grid {
  unsigned blocks = 3;
  unsigned threads = 64;
  bool backwards = false;
};

/// A block of a grid, whose threads run one after another.
class SerialBlock {
 public:
  SerialBlock(const Grid& grid, unsigned index, std::size_t shared_bytes)
      : grid_(grid), index_(index), shared_(shared_bytes / sizeof(std::uint64_t) + 1, 0xeeeeeeeeeeeeeeee) {}

  unsigned index() const { return index_; }
  unsigned count() const { return grid_.blocks; }
  unsigned threads() const { return grid_.threads; }
  template <class T>
  T* shared() {
    return reinterpret_cast<T*>(shared_.data());
  }
  template <class Fn>
  void each(const Fn& fn) const {
    for (unsigned t = 0; t < grid_.threads; ++t) fn(grid_.backwards ? grid_.threads - 1 - t : t);
  }

 private:
  Grid grid_;
  unsigned index_;
  std::vector<std::uint64_t> shared_;  // holds anything at first
};

template <class Kernel>
void run_on_host(const Kernel& kernel, const Grid& grid, std::size_t shared_bytes) {
  for (unsigned b = 0; b < grid.blocks; ++b) {
    SerialBlock block(grid, grid.backwards ? grid.blocks - 1 - b : b, shared_bytes);
    kernel(block);
  }
}

class HostTables : public DeviceTables {
 public:
  HostTables(std::size_t taps, std::size_t cells, bool with_tables, const Grid& grid)
      : cells_(cells), tables_(with_tables ? taps : 0, std::vector<std::uint32_t>(Histogram::kTable)), grid_(grid) {}

  void reduce(const float* values, std::size_t count, std::size_t tap, std::size_t cell) override {
    RunCell* const into = &cells_.at(cell);
    if (tables_.empty()) {
      run_on_host(cuda::Observe<false>{values, count, into, nullptr}, grid_, cuda::kObserveBytes<false>);
    } else {
      run_on_host(cuda::Observe<true>{values, count, into, tables_.at(tap).data()}, grid_, cuda::kObserveBytes<true>);
    }
  }
  void take_cells(std::span<RunCell> cells) override {
    std::copy_n(cells_.begin(), cells.size(), cells.begin());
    std::fill_n(cells_.begin(), cells.size(), RunCell());
    ++cell_reads;
  }
  void take_table(std::size_t tap, std::span<std::uint32_t, Histogram::kTable> counts) override {
    std::copy(tables_.at(tap).begin(), tables_.at(tap).end(), counts.begin());
    std::fill(tables_.at(tap).begin(), tables_.at(tap).end(), 0U);
    ++table_reads;
  }

  int cell_reads = 0;
  int table_reads = 0;

 private:
  std::vector<RunCell> cells_;
  std::vector<std::vector<std::uint32_t>> tables_;
  Grid grid_;
};

class HostDevice : public CalibrationDevice {
 public:
  explicit HostDevice(const Grid& grid = {}) : grid_(grid) {
    place_.provider = "CPUExecutionProvider";
    place_.memory = "Cpu";
    place_.copy = [this](void* to, const void* from, std::size_t bytes) {
      std::memcpy(to, from, bytes);
      ++copies;
    };
  }
  HostDevice(const HostDevice&) = delete;
  HostDevice& operator=(const HostDevice&) = delete;

  std::string name() const override { return "host:0 (threads one by one)"; }
  const shim::Device& place() const override { return place_; }
  std::unique_ptr<DeviceTables> tables(std::size_t taps, std::size_t cells, bool with_tables) override {
    auto made = std::make_unique<HostTables>(taps, cells, with_tables, grid_);
    last = made.get();
    return made;
  }

  HostTables* last = nullptr;
  int copies = 0;

 private:
  Grid grid_;
  shim::Device place_;
};

}  // namespace detent::calibration::test
