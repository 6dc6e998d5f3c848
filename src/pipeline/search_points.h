// Models on the way of a search: written, run and measured as deployed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "data/sample.h"
#include "detent/search.h"
#include "pipeline/run.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/samples/sample_feed.h"
#include "shim/ranks.h"

namespace detent::pipeline {

/// A point that was to be made, and why the model has no such form; empty: it was made.
struct Attempt {
  SearchPoint point;
  std::string reason;
};

/// What a rank made of the points that rank 0 wants.
struct PointShare {
  std::vector<Attempt> attempts;
  std::uint64_t inferences = 0;
  bool cut_off = false;  // since time was up; then there are no attempts
};

/// Collective: names and formats of the points that rank 0 wants, on all ranks.
std::vector<SearchPoint> broadcast_points(shim::Ranks* ranks, const std::vector<SearchPoint>& points,
                                          const std::stop_token& stop);

/// Of each attempt what was measured and the reason; the points themselves are known.
std::vector<std::byte> written(const PointShare& share);
/// Reads what a rank wrote of these points. Throws device for what is no such message.
PointShare read_share(int rank, std::span<const std::byte> bytes, const std::vector<SearchPoint>& points);

/// A model that was made, and where it lies until the search ends.
struct MadePoint {
  SearchPoint told;
  std::filesystem::path file;
};

class SearchPoints {
 public:
  /// `run` has all that mixtures are made of. `waiting`: what ends waiting for other ranks. What is given must outlive
  /// this.
  SearchPoints(const SearchOptions& options, Run& run, std::filesystem::path folder, std::stop_token waiting);

  /// Writes the mixture of each point's formats, or without any the model of a run of quantize() alone, and measures
  /// its results beside the float model's. Ranks share the points, and rank 0 gets what all of them made.
  std::vector<Attempt> attempt(std::vector<SearchPoint> points);
  /// On other ranks: takes a share of the points that rank 0 wants, until it wants no more.
  void help();
  /// On rank 0: it wants no more.
  void dismiss_helpers();
  /// Keeps what was made, and a note of what was not; false: that is so.
  bool keep(Attempt attempt);
  /// Times of those that have none yet, in turns with the float model's, which is timed in any case. Throws resource
  /// where they cannot be measured.
  void time();
  /// When time is up: forgets those that have no times yet. False: nothing is left.
  bool keep_timed();
  /// Whether it was up on another rank first.
  bool cut_off() const noexcept { return cut_off_; }

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
  shim::Ranks* ranks() const { return options_.resources.ranks; }
  std::vector<Attempt> share(const std::vector<SearchPoint>& wanted);
  std::vector<SearchPoint> points_of(int rank, const std::vector<SearchPoint>& wanted) const;
  PointShare make_share(const std::vector<SearchPoint>& points);
  /// Throws Error where the model has no such form.
  void make(SearchPoint& point);
  void finish(SearchPoint& point);
  std::string reason_against(SearchPoint& point, void (SearchPoints::*work)(SearchPoint&));
  std::vector<std::string> files_of(const PointShare& share) const;
  /// What an interrupted search has found of the same model and samples, if it has.
  bool recall(SearchPoint& point, const std::filesystem::path& file) const;
  void remember(const SearchPoint& point, const std::filesystem::path& file) const;
  std::filesystem::path file_of(const SearchPoint& point) const;
  void note(std::string text);

  const SearchOptions& options_;
  Run& run_;
  std::filesystem::path folder_;
  std::stop_token waiting_;
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
  bool cut_off_ = false;
  std::optional<run::FloatResults> float_results_;  // of those that judge
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

/// Throws usage where something is there already.
void check_search_output(const SearchOptions& options);

/// The command line that makes a point alone, byte for byte; of the float model, empty.
std::string command_of(const SearchOptions& options, const SearchPoint& point);

/// Writes front.json, front.html, a file of --config for each mixed point, and the chosen models, and says in `result`
/// where these are. The folder appears whole or not at all.
void write_search(const SearchOptions& options, const std::vector<MadePoint>& made, SearchResult& result);

}  // namespace detent::pipeline
