// How near a written model's results are to the float model's, where both run as deployed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "detent/compare.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "run/comparison/outcome.h"
#include "store/spool.h"

namespace detent::run {

// The float model's results on some samples, for comparisons with a model that runs in a process of its own.

struct FloatRun {
  data::Sample sample;
  std::vector<data::Array> results;
};

/// Results of the float model on disk but for a few MiB: for all who compare with it on the same samples.
class FloatResults {
 public:
  /// In a folder under `parent`, of so many bytes or less. Models take turns where there is room for `turns`.
  FloatResults(const std::filesystem::path& parent, std::uint64_t disk, std::uint64_t turns = std::uint64_t{256} << 20);

  bool is_empty() const noexcept { return kept_.empty(); }
  bool holds(const std::string& key) const { return kept_.contains(key); }
  /// Of a key that it holds. Throws resource where a file cannot be read back.
  std::vector<data::Array> get(const std::string& key) { return read(results_, kept_.at(key)); }
  /// False: there is no room.
  bool keep(const std::string& key, const std::vector<data::Array>& results);

 private:
  friend class FloatRuns;

  static constexpr std::uint64_t kInMemory = std::uint64_t{4} << 20;

  store::Record read(store::Spool::Lane lane, std::size_t record);

  bool has_room_;       // for turns that are worth loading a model for
  std::uint64_t most_;  // bytes of what is kept, and of a turn
  TempDir directory_;
  store::Spool spool_;
  store::Spool::Lane results_, turn_;
  std::map<std::string, std::size_t> kept_;   // records, by their keys
  std::uint64_t bytes_ = 0, turn_bytes_ = 0;  // of what is kept, and of samples that wait
};

/// The float model: loaded at its first run, and again at the first one after it was closed.
struct FloatModel {
  std::function<std::vector<data::Array>(const data::Sample& sample)> run;
  std::function<void()> close;
};

/// How the float model and another one take turns and are never open together: some samples run and wait, the float
/// model is closed, and before it is loaded again the other one is. With little disk both stay open.
struct ModelTurns {
  FloatResults& waiting;
  bool shared;                 // results are looked up there, and kept
  SharedDecisions& decisions;  // of the float model's runs, which wait with them
  std::function<void()> close_other;
  /// What the other model does with each sample of a turn before any of them is compared; may be empty.
  std::function<void(const data::Sample& sample)> run_first = {};
};

class FloatRuns {
 public:
  /// At most `most` samples from where `source` stands. All that is given outlives this.
  FloatRuns(FloatModel model, data::SampleSource& source, std::size_t most, ModelTurns turns)
      : model_(std::move(model)), source_(source), left_(most), turns_(std::move(turns)) {}

  /// nullopt after the last. The decisions are those of the run. Throws what the source and the model throw, and
  /// resource where a file cannot be read back.
  std::optional<FloatRun> next();

 private:
  /// Whose inputs wait, and behind them what it decided, and its results unless these are kept.
  struct Waiting {
    std::string origin;
    std::size_t inputs;
    std::optional<std::string> kept = {};
  };

  void take_turn();
  Waiting run(const data::Sample& sample);

  FloatModel model_;
  data::SampleSource& source_;
  std::size_t left_;
  ModelTurns turns_;
  bool ended_ = false;
  std::vector<Waiting> turn_;
  std::size_t told_ = 0;  // of them
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
                                   const std::function<void(std::uint64_t)>& told = {}, FloatResults* kept = nullptr);

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

/// A session in which such values are rounded to their type where they are made; opened at its first run.
class RoundedSession {
 public:
  /// `taps`: values that the receivers of runs get, in this order; those that are rounded, as they are then. The model
  /// must outlive it.
  RoundedSession(const exec::Runtime& runtime, const onnx::Model& model, const LowValues& low,
                 const std::vector<std::string>& taps, const std::string& where, exec::SessionOptions options);
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where,
                               data::TapReceiver* receiver = nullptr);
  /// Until the next run.
  void close() { session_.reset(); }

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
  std::function<exec::Session()> open_;
  std::optional<exec::Session> session_;
};

/// What is to be said of such a run; empty where nothing is rounded.
std::vector<std::string> rounding_notes(const LowValues& low, const std::vector<std::string>& overflows);

}  // namespace detent::run
