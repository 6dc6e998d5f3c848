// Models on the way of a search: written by runs of quantize(), run and measured as deployed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "detent/search.h"
#include "exec/session.h"
#include "profile/profiler.h"
#include "run/content_order.h"

namespace detent::pipeline {

/// A model that was made, and where it lies until the search ends.
struct MadePoint {
  SearchPoint told;
  std::filesystem::path file;
};

class SearchPoints {
 public:
  /// `base`: what all runs of quantize() have in common. Everything given must outlive this.
  SearchPoints(const SearchOptions& options, const QuantizeOptions& base, const exec::Runtime& runtime,
               std::filesystem::path folder, profile::Profiler& profiler);

  /// The options of a single format, by its name.
  QuantizeOptions of_format(const std::string& format) const;
  /// Of several formats.
  QuantizeOptions of_nodes(const std::vector<std::string>& node_formats) const;

  /// Writes the model, and measures its results beside the float model's; false: the model has no such form, of which a
  /// note tells.
  bool make(SearchPoint point, const QuantizeOptions& options);
  /// Times of those that have none yet, in turns with the float model's. Throws resource where they cannot be measured.
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
  void judge(MadePoint& point);
  void note(std::string text);

  const SearchOptions& options_;
  const QuantizeOptions& base_;
  const exec::Runtime& runtime_;
  std::filesystem::path folder_;
  profile::Profiler& profiler_;
  std::unique_ptr<data::SampleSource> given_;
  std::optional<run::ContentOrderedSamples> source_;
  std::size_t judged_ = 0;  // samples, the last of all
  std::vector<MadePoint> made_;
  std::size_t timed_ = 0;     // of them
  double float_seconds_ = 0;  // of one sample
  std::optional<double> float_score_;
  std::vector<std::string> notes_;
  std::uint64_t inferences_ = 0;
};

/// The float model as a point, as far as it is known before anything is timed.
SearchPoint float_point(const SearchOptions& options);

}  // namespace detent::pipeline
