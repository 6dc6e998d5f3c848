// Models on the way of a search: written, run and measured as deployed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "data/sample.h"
#include "detent/search.h"
#include "pipeline/run.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/float_runs.h"
#include "run/samples/content_order.h"

namespace detent::pipeline {

/// A model that was made, and where it lies until the search ends.
struct MadePoint {
  SearchPoint told;
  std::filesystem::path file;
};

class SearchPoints {
 public:
  /// `run` has all that mixtures are made of. Everything given must outlive this.
  SearchPoints(const SearchOptions& options, Run& run, std::filesystem::path folder);

  /// Writes the mixture of the point's formats, or without any the model of a run of quantize() alone, and measures its
  /// results beside the float model's; false: the model has no such form, of which a note tells.
  bool make(SearchPoint point);
  /// Times of those that have none yet, in turns with the float model's, which is timed in any case. Throws resource
  /// where they cannot be measured.
  void time();
  /// When time is up: forgets those that have no times yet. False: nothing is left.
  bool keep_timed();

  const std::vector<MadePoint>& made() const noexcept { return made_; }
  const std::vector<std::string>& notes() const noexcept { return notes_; }
  std::uint64_t inferences() const noexcept { return inferences_; }
  /// Of one sample, once something was timed.
  double float_seconds() const noexcept { return float_seconds_; }

 private:
  void open_samples();
  run::DeployedFidelity write_mixture(SearchPoint& point, const std::filesystem::path& file);
  run::DeployedFidelity write_alone(SearchPoint& point, const std::filesystem::path& file);
  std::vector<LatencyChange> measure(const std::vector<std::filesystem::path>& files, std::uint64_t memory);
  std::uint64_t memory_to_time(std::uint64_t bytes) const;
  void judge(SearchPoint& point, const std::filesystem::path& file, const run::DeployedFidelity& found);
  /// What an interrupted search has found of the same model and samples, if it has.
  bool recall(SearchPoint& point, const std::filesystem::path& file) const;
  void remember(const SearchPoint& point, const std::filesystem::path& file) const;
  std::filesystem::path file_of(const SearchPoint& point) const;
  void note(std::string text);

  const SearchOptions& options_;
  Run& run_;
  std::filesystem::path folder_;
  std::vector<data::InputSpec> inputs_;  // of the float model
  std::unique_ptr<data::SampleSource> given_;
  std::optional<run::ContentOrderedSamples> source_;
  std::size_t judged_ = 0;  // samples, the last of all
  Fingerprint of_samples_;
  std::vector<MadePoint> made_;
  std::size_t timed_ = 0;  // of them
  bool was_busy_ = false;
  double float_seconds_ = 0;  // of one sample
  std::optional<double> float_score_;
  run::KeptFloatRuns float_runs_;  // of those that judge
  std::vector<std::string> notes_;
  std::uint64_t inferences_ = 0;
};

/// Before the work is done: throws resource where a float model of such activations (0: not known yet) and a quantized
/// one cannot be timed beside each other.
void check_memory_to_time(const SearchOptions& options, std::uint64_t activations);

/// What all models of a search have in common.
QuantizeOptions base_of(const SearchOptions& options);

/// The float model as a point, as far as it is known before anything is timed.
SearchPoint float_point(const SearchOptions& options);

}  // namespace detent::pipeline
