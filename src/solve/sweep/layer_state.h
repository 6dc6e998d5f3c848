// The state of a layer that is being solved, in a file of the run's directory.
#pragma once

#include <chrono>
#include <filesystem>

#include "solve/layers/solver_state.h"

namespace detent::solve {

class LayerState final : public SolverState {
 public:
  /// `seconds`: how often it is due.
  LayerState(std::filesystem::path file, double seconds) : file_(std::move(file)), seconds_(seconds) {}

  /// Nothing when it is damaged: the layer then starts again, with the same result.
  Stored load() override;
  bool is_due() const override { return Clock::now() - saved_ >= seconds_; }
  void save(std::span<const std::span<const std::byte>> parts) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path file_;
  std::chrono::duration<double> seconds_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace detent::solve
