// A device that is the host: the kernels' own source, run thread after thread.
#pragma once

#include <cstring>
#include <vector>

#include "calibrate/device_observers.h"
#include "cuda/observe_kernel.h"

namespace detent::calibration::test {

/// How the threads of a grid follow one another; a kernel's result must not depend on it.
struct Grid {
  unsigned blocks = 3;
  unsigned threads = 64;
  bool backwards = false;
};

inline void observe_on_host(const cuda::ObserveArguments& of, const Grid& grid) {
  cuda::ObservedExtremes extremes;
  cuda::ObservedRows all_rows;
  cuda::ObservedRows* const rows = of.table == nullptr ? nullptr : &all_rows;
  const auto each_thread = [&](unsigned block, const auto& phase) {
    for (unsigned t = 0; t < grid.threads; ++t) {
      const unsigned thread = grid.backwards ? grid.threads - 1 - t : t;
      phase(cuda::ThreadPlace{grid.backwards ? grid.blocks - 1 - block : block, grid.blocks, thread, grid.threads});
    }
  };
  for (unsigned block = 0; block < grid.blocks; ++block) {
    std::memset(&extremes, 0xee, sizeof extremes);  // shared memory holds anything at first
    std::memset(&all_rows, 0xee, sizeof all_rows);
    each_thread(block, [&](const auto& at) { cuda::observe_begin(at, extremes, rows); });
    each_thread(block, [&](const auto& at) {
      if (rows != nullptr) {
        cuda::observe_scan<true>(of, at, extremes, rows);
      } else {
        cuda::observe_scan<false>(of, at, extremes, rows);
      }
    });
    each_thread(block, [&](const auto& at) { cuda::observe_end(of, at, extremes, rows); });
  }
}

class HostTables : public DeviceTables {
 public:
  HostTables(std::size_t taps, std::size_t cells, bool with_tables, const Grid& grid)
      : cells_(cells), tables_(with_tables ? taps : 0, std::vector<std::uint32_t>(Histogram::kTable)), grid_(grid) {}

  void reduce(const float* values, std::size_t count, std::size_t tap, std::size_t cell) override {
    observe_on_host({values, count, &cells_.at(cell), tables_.empty() ? nullptr : tables_.at(tap).data()}, grid_);
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
  const exec::Device& place() const override { return place_; }
  std::unique_ptr<DeviceTables> tables(std::size_t taps, std::size_t cells, bool with_tables) override {
    auto made = std::make_unique<HostTables>(taps, cells, with_tables, grid_);
    last = made.get();
    return made;
  }

  HostTables* last = nullptr;
  int copies = 0;

 private:
  Grid grid_;
  exec::Device place_;
};

}  // namespace detent::calibration::test
