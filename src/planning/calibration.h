// What calibration will take, told from the model and the shapes of a sample before anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/session.h"
#include "graph/values.h"
#include "graph/work.h"
#include "onnx/model.h"

namespace detent::planning {

/// The blocked layout costs a copy of the convolutions' weights outside of the mapped file: taken where that is little
/// beside what any session needs. Depends on the model alone, so that results do too.
exec::SessionMode session_mode_for(const onnx::Model& model);
/// Whether convolutions run in blocks then, which they do not on every machine.
bool runs_in_blocks(const onnx::Model& model);

/// A part of the peak, in bytes.
struct MemoryPart {
  std::string what;
  std::uint64_t bytes = 0;
};

struct CalibrationCost {
  std::vector<MemoryPart> memory;       // resident at the peak
  graph::Work work;                     // of one run of the float model
  std::uint64_t observed_elements = 0;  // in one run

  std::uint64_t peak_memory() const;
};

struct Circumstances {
  std::size_t observed = 0;  // tensors
  bool histograms = true;
  std::size_t threads = 1;
  std::size_t workers = 1;
  std::uint64_t sample_bytes = 0;
  std::uint64_t beside = 0;  // bytes of what else stands in memory all the time
  /// Samples run again and again, so that weights that are read anew for each run would be read without end: they stay
  /// resident while their segment runs.
  bool weights_stay = false;
};

/// What the summaries and the tables behind them take.
std::uint64_t statistics_bytes(const Circumstances& circumstances);

/// `types` must be of static shapes, as for the sample at hand; nullopt when some are not. `observed` names the values
/// under observation. The figures behind the parts that do not follow from the model (the process with the runtime in
/// it, a node of a session) were measured; docs/decisions/008 has them.
std::optional<CalibrationCost> calibration_cost(const onnx::Model& model, const graph::ValueTypes& types,
                                                const std::vector<std::string>& observed,
                                                const Circumstances& circumstances);

}  // namespace detent::planning
