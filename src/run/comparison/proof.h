// The proof of a written file: it is loaded and run as its users will, before it takes its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/paths.h"
#include "data/sample.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "onnx/write.h"
#include "run/comparison/deployed_fidelity.h"

namespace detent::run {

/// The runtime makes something else of a file than it says: by its default optimizations, or (`in_int8`) where products
/// in blocks multiply int8, as WeightsOnlyConfig::accuracy_level lets them.
struct LostInRuntime : Error {
  LostInRuntime(const std::string& what, bool int8) : Error(ErrorKind::device, what, ""), in_int8(int8) {}
  bool in_int8;
};

/// 16-bit floats do not hold what these nodes, by Node::id(), read or compute on made-up inputs.
struct BeyondFloat16 : Error {
  BeyondFloat16(const std::string& what, std::vector<std::string> found)
      : Error(ErrorKind::bad_input, what, "give samples (--calibration-data): they decide what has 16 bits"),
        nodes(std::move(found)) {}
  std::vector<std::string> nodes;
};

/// What the float model may take for comparisons and times that nobody asked for; a smaller memory budget bounds them
/// too.
inline constexpr std::uint64_t kUnaskedBytes = std::uint64_t{256} << 20;

/// Runs a file in ONNX Runtime with its default options, in a process of its own (exec/guarded_session.h), beside the
/// float model: on one sample, without samples on made-up inputs of several sizes, or where accuracy is told on all
/// samples that it is told of. The two models are never open together, and a float model that takes more than the file
/// and kUnaskedBytes is opened only where the result depends on it. One call of operator() for each file.
class Prover {
 public:
  /// `runtime` null: a run that needs none and found none; then nothing is proved, and a note says so.
  Prover(const QuantizeOptions& options, const exec::Runtime* runtime) : options_(options), runtime_(runtime) {}

  /// Compares with the float model on so many samples of `source`, after those that are skipped; `kept` as in
  /// deployed_fidelity().
  void judge(data::SampleSource& source, std::size_t skipped, std::size_t count, FloatResults* kept = nullptr);
  /// Why ONNX Runtime's CPU cannot run such a file, although others can; empty: it can.
  void skip_because(std::string reason) { excuse_ = std::move(reason); }

  /// What else has to hold of a file before it takes its name; throws where it does not.
  void require(std::function<void(const std::filesystem::path&)> check) { check_ = std::move(check); }

  /// There is another form that the weights can be stored in: LostInRuntime asks for it.
  void has_other_form() { has_other_form_ = true; }

  /// Throws device when the file does not load, does not run, or its process dies; LostInRuntime; BeyondFloat16;
  /// interrupted; what the check throws.
  void operator()(const std::filesystem::path& file);

  const std::optional<DeployedFidelity>& fidelity() const noexcept { return fidelity_; }
  const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// An input of both models, and what they make of it.
  struct Pair {
    std::string where;
    std::vector<data::Array> inputs, expected = {}, found = {};
  };
  /// Of made-up inputs, where the model leaves them open.
  struct Lengths {
    std::int64_t pixels, steps;
  };

 private:
  struct Judged {
    data::SampleSource* source;
    std::size_t skipped, count;
    FloatResults* kept;
  };

  void prove(const std::filesystem::path& file);
  std::vector<Pair> run_beside(const std::filesystem::path& file);
  std::vector<Pair> run_on(const std::filesystem::path& file, data::Sample sample);
  std::vector<Pair> run_on_made_up(const std::filesystem::path& file);
  std::vector<Pair> made_up_pairs(const Lengths& lengths, const std::vector<data::InputSpec>& specs) const;
  std::string run_float(std::vector<Pair>& pairs) const;
  void judge_pairs(const std::filesystem::path& file, const std::vector<Pair>& pairs);
  double db_of(const std::filesystem::path& file, const Pair& pair, bool optimizes) const;
  double db_without_int8(const std::filesystem::path& file, const Pair& pair) const;
  void judge_rounded(const std::filesystem::path& file, const std::vector<Pair>& pairs);
  std::vector<Pair> run_rounded(const std::filesystem::path& file, std::vector<Pair> pairs,
                                std::vector<std::string>& beyond) const;
  void check_original() const;
  std::optional<data::Sample> first_sample() const;
  std::uint64_t memory_of(const std::filesystem::path& file) const;
  std::string reason_against_comparison(const std::filesystem::path& file) const;

  const QuantizeOptions& options_;
  const exec::Runtime* runtime_;
  std::optional<Judged> judged_;
  std::string excuse_;
  bool has_other_form_ = false;
  std::function<void(const std::filesystem::path&)> check_;
  std::optional<DeployedFidelity> fidelity_;
  std::vector<std::string> notes_;
};

/// Why ONNX Runtime's CPU has no kernels for the format, in words for Prover::skip_because(); empty: it has.
std::string reason_against_proof(const QuantizeOptions& options);

/// The runtime, for work that needs it for its proof alone; nullopt where there is none and none was named.
std::optional<exec::Runtime> runtime_if_there(const QuantizeOptions& options);

/// Limits of time for a model that is run in a process of its own.
exec::GuardOptions guard_options(const QuantizeOptions& options);

/// Writes a model there, gives back what `measure(path)` finds of it, and removes it with its data.
template <typename Measure>
auto measure_candidate(const onnx::Model& model, const std::filesystem::path& path, const QuantizeOptions& options,
                       Measure measure) {
  const auto written = onnx::write_model(model, path, {options.external_data_threshold});
  auto found = measure(path);
  paths::remove(path);
  if (!written.data_file.empty()) paths::remove(written.data_file);
  return found;
}

/// Runs `command` (see run_command) with the quoted path of the model as its last argument; the last number that it
/// prints. Throws bad_input when the command fails or prints no number, and interrupted.
double score_by_command(const std::string& command, const std::filesystem::path& model, const std::stop_token& stop);

/// A score as a share of the float model's: 1 when they are equal, less when `score` is worse. With f for the float
/// score it is 1 - (f - score) / |f|, which for positive scores is score / f, and for negative ones (a loss with its
/// sign changed) falls below 1 as well when the score does: -0.2 beside -0.1 is a share of 0. Throws bad_input where
/// the float score is zero or no number, since there is no share of these.
double share_of_float_score(double score, double float_score);

/// The same of models, by AccuracyConfig::score or its command. `float_score` is measured once.
double share_of_float_score(const AccuracyConfig& accuracy, const std::filesystem::path& float_model,
                            const std::filesystem::path& model, std::optional<double>& float_score,
                            const std::stop_token& stop);

}  // namespace detent::run
