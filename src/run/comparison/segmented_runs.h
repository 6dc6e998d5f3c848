// A float model that is too large to stand in memory beside everything else, run in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "exec/guarded_session.h"
#include "exec/sweep.h"
#include "onnx/model.h"
#include "run/comparison/deployed_fidelity.h"
#include "store/spool.h"

namespace detent::run {

/// Runs of a float model with large weights, which come into memory a part at a time: all samples go through the nodes
/// of one part before the next is loaded, and inputs, results and what is between wait on disk.
class SegmentedRuns {
 public:
  /// Whether a model is run so: not by a budget of memory, since last bits of the results differ. `disk`: bytes that
  /// may wait there.
  static bool suits(const onnx::Model& model, std::uint64_t disk);

  /// The samples that `next_sample` gives up to its nullopt. `parent`: of a folder that is there as long as this.
  /// `weights`: bytes of those of a part, or those of one node.
  SegmentedRuns(const exec::Runtime& runtime, onnx::Model model, const exec::GuardOptions& guard,
                const std::filesystem::path& parent, std::function<std::optional<data::Sample>()> next_sample,
                std::uint64_t weights = std::uint64_t{64} << 20);

  /// nullopt after the last. The first call runs all of them. Throws what the source, the model and the spool throw.
  std::optional<FloatRun> next();

 private:
  void run_all();
  void run_segment(exec::Branch& branch, std::size_t segment, std::vector<std::size_t> outputs);

  const exec::Runtime& runtime_;
  onnx::Model model_;
  exec::GuardOptions guard_;
  std::function<std::optional<data::Sample>()> next_sample_;
  std::uint64_t weights_;
  TempDir directory_;
  store::Spool spool_;
  std::vector<std::string> origins_;
  std::vector<store::Spool::Lane> lanes_;          // of the inputs, and of each segment's results
  std::vector<std::vector<std::size_t>> outputs_;  // in these lanes, by place among the model's outputs
  std::size_t told_ = 0;                           // samples
};

}  // namespace detent::run
