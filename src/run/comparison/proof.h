// The proof of a written file: it is loaded and run as its users will, before it takes its name.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "run/comparison/deployed_fidelity.h"

namespace detent::run {

/// Runs a file in ONNX Runtime with its default options, in a process of its own (exec/guarded_session.h): on one
/// sample, or where accuracy is told on all samples that it is told of. One call of operator() for each file.
class Prover {
 public:
  /// `runtime` null: a run that needs none and found none; then nothing is proved, and a note says so.
  Prover(const QuantizeOptions& options, const exec::Runtime* runtime) : options_(options), runtime_(runtime) {}

  /// Compares with the float model on so many samples of `source`, after those that are skipped; `kept` as in
  /// deployed_fidelity().
  void judge(data::SampleSource& source, std::size_t skipped, std::size_t count, KeptFloatRuns* kept = nullptr);
  /// Why ONNX Runtime's CPU cannot run such a file, although others can; empty: it can.
  void skip_because(std::string reason) { excuse_ = std::move(reason); }

  /// What else has to hold of a file before it takes its name; throws where it does not.
  void require(std::function<void(const std::filesystem::path&)> check) { check_ = std::move(check); }

  /// Throws device when the file does not load, does not run, or its process dies; interrupted; what the check throws.
  void operator()(const std::filesystem::path& file);

  const std::optional<DeployedFidelity>& fidelity() const noexcept { return fidelity_; }
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  struct Judged {
    data::SampleSource* source;
    std::size_t skipped, count;
    KeptFloatRuns* kept;
  };

  void prove(const std::filesystem::path& file);
  void run_once(const std::filesystem::path& file);
  void check_original() const;
  std::vector<data::Array> inputs_for(const std::vector<data::InputSpec>& specs, std::string& where) const;
  std::uint64_t memory_of(const std::filesystem::path& file) const;
  bool has_room(const std::filesystem::path& file);

  const QuantizeOptions& options_;
  const exec::Runtime* runtime_;
  std::optional<Judged> judged_;
  std::string excuse_;
  std::function<void(const std::filesystem::path&)> check_;
  std::optional<DeployedFidelity> fidelity_;
  std::vector<std::string> notes_;
};

/// Formats that ONNX Runtime's CPU has no kernels of, in words for Prover::skip_because(); empty: there is none among
/// those asked for.
std::string reason_against_proof(const QuantConfig& config);

/// The runtime, for work that needs it for its proof alone; nullopt where there is none and none was named.
std::optional<exec::Runtime> runtime_if_there(const QuantizeOptions& options);

/// Limits of time for a model that is run in a process of its own.
exec::GuardOptions guard_options(const QuantizeOptions& options);

}  // namespace detent::run
