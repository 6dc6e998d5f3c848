// How near a written model's results are to the float model's, where both run as deployed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/sample.h"
#include "detent/compare.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "onnx/model.h"

namespace detent::run {

// The float model's results on some samples, for comparisons with a model that runs in a process of its own.

struct FloatRun {
  data::Sample sample;
  std::vector<data::Array> results;
};

/// Bytes of samples and results that may stand in memory.
inline constexpr std::uint64_t kFloatRunBytes = std::uint64_t{16} << 20;

/// For several models that are compared on the same samples.
struct KeptFloatRuns {
  std::uint64_t limit = kFloatRunBytes;
  std::vector<FloatRun> runs = {};
  bool are_all = false;  // otherwise each comparison runs the float model anew
};

/// The float model: loaded at its first run, and again at the first one after it was closed.
struct FloatModel {
  std::function<std::vector<data::Array>(const data::Sample& sample)> run;
  std::function<void()> close;
};

class FloatRuns {
 public:
  /// At most `most` samples from where `source` stands. Runs that `kept` (or null) has are not done again. All that is
  /// given outlives this.
  FloatRuns(FloatModel model, data::SampleSource& source, std::size_t most, KeptFloatRuns* kept = nullptr);

  /// Runs samples before they are asked for, until their inputs and results take so many bytes. Where no more are left
  /// then, the model is closed: it does not stand in memory beside the other model's.
  void run_ahead(std::uint64_t bytes);

  /// nullopt after the last. Throws what the source and the model throw.
  std::optional<FloatRun> next();

 private:
  std::optional<FloatRun> run();
  void keep(const std::optional<FloatRun>& run);

  FloatModel model_;
  data::SampleSource& source_;
  std::size_t left_;
  KeptFloatRuns* kept_;
  std::uint64_t kept_bytes_ = 0;
  bool ended_ = false;
  std::deque<FloatRun> ahead_;
};

/// So many samples are named in results.
inline constexpr std::size_t kMostSampleNames = 1000;

struct DeployedFidelity {
  std::uint64_t samples = 0;
  std::size_t outputs = 0;                        // that have numbers to compare
  std::vector<std::string> without_numbers = {};  // outputs: text, sequences, maps and optionals
  std::vector<std::string> sample_names = {};     // of the first
  double sqnr_db = 0;                             // of the worst output
  double cosine = 0;                              // the same
  double worst_sample_db = 0;                     // of that sample, and output, which is farthest
  std::optional<double> cache_db;                 // of the worst cache, where caches do not count
  std::optional<NextTokens> next_tokens;
  std::vector<std::string> lost_channels = {};  // a sentence each, see ChannelSums
  std::optional<ChannelGroup> worst_channels = {};
};

/// Whether the runtime has the kernels of what the file has in bfloat16. Its CPU has a few, such as Cast's.
bool runs_bfloat16(const exec::Runtime& runtime, const std::filesystem::path& file, const exec::GuardOptions& options);

/// On the samples from where `source` stands, at most so many. The model runs in a process of its own. The caches of
/// decoders (outputs named "present…") do not count where there are other outputs. Both models have the same inputs and
/// outputs. A float model of bfloat16 is run in float32 where the runtime has no kernels. `told` gets the number of
/// samples behind it. `kept` serves calls for the same float model and samples. Throws what the runtime and the samples
/// throw, and bad_input where there are no samples.
DeployedFidelity deployed_fidelity(const exec::Runtime& runtime, const std::filesystem::path& float_model,
                                   const std::filesystem::path& model, data::SampleSource& source, std::size_t most,
                                   const exec::GuardOptions& options,
                                   const std::function<void(std::uint64_t)>& told = {}, KeptFloatRuns* kept = nullptr);

/// Of outputs that are not compared.
std::vector<std::string> notes_on_uncompared_outputs(const DeployedFidelity& found);

/// What is told of a file's accuracy: of no samples where no output has numbers to compare; the other members stay as
/// they are.
void copy_fidelity(const DeployedFidelity& found, AccuracyResult& accuracy);

/// Of cosine, sqnr or perplexity; the larger the better. Throws bad_input where the model tells no next tokens and
/// perplexity is asked for.
double metric_value(const DeployedFidelity& fidelity, AccuracyMetric metric);

// Models of 16-bit floats as devices with such kernels run them. The runtime's CPU computes float16 nodes in float32,
// so that overflow and lost digits do not show there, and has no bfloat16 at all.

/// Values that nodes make in 16-bit types, with the type of each.
using LowValues = std::vector<std::pair<std::string, FloatType>>;

/// Brings all 16-bit floats of a model but for its inputs and outputs to float32, and its constants into files of a
/// directory; tells which values of the model, as it is then, had such a type. The model must be unfolded
/// (onnx/bodies.h), with its constants as initializers.
LowValues raise_for_rounding(onnx::Model& model, const exec::PortsOf& ports_of, const std::filesystem::path& directory);

/// A session in which such values are rounded to their type where they are made.
class RoundedSession {
 public:
  /// `taps`: values that the receivers of runs get, in this order; those that are rounded, as they are then.
  RoundedSession(const exec::Runtime& runtime, const onnx::Model& model, const LowValues& low,
                 const std::vector<std::string>& taps, const std::string& where, exec::SessionOptions options);
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where,
                               data::TapReceiver* receiver = nullptr);

  /// Values that held finite numbers beyond their type, in the order of LowValues.
  std::vector<std::string> overflows() const;

 private:
  struct Tap {
    std::string value;
    std::optional<FloatType> type = {};        // rounded to this
    std::optional<std::size_t> position = {};  // among those that receivers get
    std::size_t overflows = 0;
  };
  class Receiver;

  static std::vector<Tap> all_taps(const LowValues& low, const std::vector<std::string>& taps);
  static exec::SessionOptions with_edits(exec::SessionOptions options, bool edits);

  std::vector<Tap> taps_;
  exec::Session session_;
};

/// What is to be said of such a run; empty where nothing is rounded.
std::vector<std::string> rounding_notes(const LowValues& low, const std::vector<std::string>& overflows);

}  // namespace detent::run
