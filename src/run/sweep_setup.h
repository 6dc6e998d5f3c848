// How a sweep keeps to the user's budgets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/resources.h"
#include "planning/segments.h"
#include "quantization/placement/placement.h"
#include "run/collect.h"
#include "run/context.h"
#include "run/files/run_directory.h"
#include "run/model/prepare.h"
#include "store/spool.h"

namespace detent::run {

/// Memory and disk that a run may use.
planning::Budget budget_of(const Resources& resources, const std::filesystem::path& work_dir);

/// Shapes of the inputs in the first sample, by name, and its bytes. The source is rewound.
struct FirstSample {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::uint64_t bytes = 0;
};
FirstSample first_sample(data::SampleSource& source, const std::vector<data::InputSpec>& specs);

/// Types with the shapes that the first sample gives; `types` themselves where they are static already.
graph::ValueTypes static_types(const graph::ValueTypes& types, const onnx::Model& model, const exec::Runtime& runtime,
                               data::SampleSource& source);

/// A spool in a directory below that of the context.
std::unique_ptr<store::Spool> make_spool(const Context& context, const planning::SpoolMemory& memory);

/// One for a sweep by this plan; where nothing could be planned, no records stay in memory.
std::unique_ptr<store::Spool> make_spool(const Context& context, const std::optional<planning::SweepPlan>& plan);

struct SweepSetup {
  std::optional<planning::SweepPlan> plan;  // unset: shapes depend on values, and no budget was asked for
  std::vector<int> cuts;
  std::unique_ptr<store::Spool> spool;  // where there are cuts
  std::size_t measured = 0;             // shapes that depend on values: those of the first sample were planned with
};

/// Plans the sweep and makes its spool; progress of an `earlier` process brings its own cuts. Throws resource when the
/// budget cannot be met.
SweepSetup set_up_sweep(const Context& context, const Prepared& prepared, const quantization::Placement& placement,
                        data::SampleSource& source, planning::Circumstances circumstances,
                        const CalibrationProgress* earlier = nullptr);

struct Collected {
  calibration::Statistics statistics;
  std::vector<std::string> notes;  // how the sweep ran
};

/// collect() within the user's budgets. Continues from the checkpoint that an earlier process left in the run's
/// directory.
Collected collect_within(const Context& context, const RunDirectory& directory, const Prepared& prepared,
                         const quantization::Placement& placement, data::SampleSource& source, CollectOptions options);

}  // namespace detent::run
