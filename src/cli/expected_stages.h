// How far a whole run is, from how far its stages are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "detent/quantize.h"

namespace detent::cli {

/// A stage that a run is expected to go through, under the name that Progress gives it.
struct ExpectedStage {
  std::string name;
  double share = 1;          // of the run's time, to a common factor
  bool repeats = false;      // it starts over, nobody knows how often
  bool takes_turns = false;  // with the stage before it
};

/// The stages of quantize with these options, with shares as they typically are.
std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options);

/// The share of a run that is done, which never falls.
class Overall {
 public:
  Overall() = default;
  explicit Overall(std::vector<ExpectedStage> stages);

  /// What Progress tells; a stage that is not expected changes nothing.
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total);
  bool is_known() const noexcept { return done_ > 0; }
  double done() const noexcept { return done_; }  // 0 to 1

 private:
  std::size_t first_of_turns(std::size_t index) const;

  std::vector<ExpectedStage> stages_;
  double all_ = 0;             // shares
  std::size_t current_ = 0;    // the first stage of those under way
  std::vector<double> parts_;  // of each stage, done
  std::uint64_t last_ = 0;     // done in the one that repeats
  int passes_ = 0;             // that it has behind it
  double done_ = 0;
};

}  // namespace detent::cli
