// From what the user allows to how the sweep runs.
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
#include "exec/session.h"
#include "plan/segments.h"
#include "quantize/placement.h"
#include "run/collect.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "store/spool.h"

namespace detent::run {

/// Memory and disk that a run may take.
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

/// A spool in a directory below `directory`, of which so much may rest in memory.
std::unique_ptr<store::Spool> make_spool(const Resources& resources, std::uint64_t memory_bytes,
                                         const std::filesystem::path& directory);

struct SweepSetup {
  std::optional<planning::SweepPlan> plan;  // unset: shapes depend on values, and no budget was asked for
  std::vector<int> cuts;
  std::unique_ptr<store::Spool> spool;  // where there are cuts
};

/// Plans the sweep and makes its spool in `directory`; `earlier` brings its own cuts. Throws resource when the budget
/// cannot be met.
SweepSetup set_up_sweep(const Prepared& prepared, const quantization::Placement& placement,
                        const exec::Runtime& runtime, data::SampleSource& source, planning::Circumstances circumstances,
                        const Resources& resources, const std::filesystem::path& directory, const Progressed* earlier);

/// collect() within what the user allows, going on from what an earlier process left in the directory. What became of
/// the sweep is added to `notes`.
calibration::Statistics collect_within(const Resources& resources, const RunDirectory& directory,
                                       const Prepared& prepared, const quantization::Placement& placement,
                                       const exec::Runtime& runtime, data::SampleSource& source, CollectOptions options,
                                       std::vector<std::string>& notes);

}  // namespace detent::run
