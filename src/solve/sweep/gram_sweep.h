// One pass over the float model that sums up what each product reads, within the memory that there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "calibration/observers.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/config.h"
#include "detent/progress.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "onnx/tensor.h"
#include "quantization/placement/placement.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_error.h"
#include "store/spool.h"

namespace detent::solve {

/// Products whose inputs are summed up in one pass, by the values that they read.
struct BlockStage {
  struct Input {
    std::string value;
    std::int64_t rows = 0;             // its last dimension
    std::vector<std::size_t> tensors;  // of the placement; the first product of each reads the value
  };
  std::vector<Input> inputs;
  int begin = 0;  // the first node of the stage; the model is cut before it
};

/// Bytes of Gram matrices and of what solving takes beside them.
struct GramMemory {
  std::uint64_t wanted = 0;                                           // of a stage of several
  std::uint64_t most = 0;                                             // of a single one
  std::uint64_t weights = std::numeric_limits<std::uint64_t>::max();  // that the nodes of a stage read
};

/// Stages in the order of the model, of which each takes the memory that is wanted, or has a single matrix or a single
/// node with weights. Weights that only tables read are in none. Throws resource where there is too little for one
/// matrix.
std::vector<BlockStage> block_stages(const onnx::Model& model, const quantization::Placement& placement,
                                     const WeightsOnlyConfig& config, const GramMemory& memory);

/// Of the samples that weights are fitted to, and of those that are held back and judge.
struct InputGrams {
  Gram fitted;
  std::optional<GramOrInputRows> held_back;

  GramOrInputRows judge() const { return held_back ? *held_back : GramOrInputRows(fitted); }
};

class GramReceiver {
 public:
  virtual ~GramReceiver() = default;
  /// Whether the sums over an input are wanted: those of other inputs are not made.
  virtual bool wants(const BlockStage::Input& input) const = 0;
  /// All samples have gone by. The matrices are valid during the call.
  virtual void receive(const BlockStage::Input& input, const InputGrams& grams) = 0;
};

inline constexpr std::size_t kMostHeldBack = 2048;

struct GramSweepOptions {
  int threads = 0;
  store::Spool* spool = nullptr;  // needed for more than one stage
  Progress progress = {};
  std::stop_token stop = {};
  /// Where given, the extremes of these values are found in the same pass, whatever sums are wanted.
  std::vector<std::string> observed = {};
  calibration::Statistics* extremes = nullptr;
  /// Where given, it receives these values in the same pass, counted as here, whatever sums are wanted.
  std::vector<std::string> listened = {};
  calibration::CacheObserver* listener = nullptr;
};

/// Returns the number of samples, of which every eighth is held back; of 2 to 7 the last is. Of inputs of more than
/// kMostHeldBack values so many positions are held back at the most, as they are, and the others of these samples are
/// fitted to. The sums depend on the samples and their order alone. Throws what the runtime, the samples and the spool
/// throw.
std::uint64_t sweep_grams(const onnx::Model& model, const graph::ValueTypes& types,
                          const std::vector<BlockStage>& stages, const exec::Runtime& runtime,
                          data::SampleSource& source, const GramSweepOptions& options, GramReceiver& receiver);

/// The same pass for what GramSweepOptions observes alone, over the model in one piece or, with `cuts` before some of
/// its nodes and a spool, in several.
std::uint64_t sweep_values(const onnx::Model& model, const graph::ValueTypes& types, const exec::Runtime& runtime,
                           data::SampleSource& source, const std::vector<int>& cuts, const GramSweepOptions& options);

/// Up to two pieces of kColumnsTogether columns (of long ones fewer), evenly spread, one after another. Throws what
/// read_columns() throws.
std::vector<float> representative_columns(const onnx::Tensor& tensor, const quantization::BlockTensor& shape);

}  // namespace detent::solve
