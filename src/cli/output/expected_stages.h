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
  int passes = 1;            // so often it starts over, as a rule
  bool takes_turns = false;  // with the stage before it
  std::uint64_t work = 0;    // that the share is for, where it grows with what is told as the total
};

/// What comes before the first stage that is told of: it is done by then.
inline constexpr const char* kOpening = "";

/// The stages of quantize with these options, with shares as they typically are.
std::vector<ExpectedStage> expected_stages(const QuantizeOptions& options);

/// The share of a run that is done, which never falls. Stages that a run leaves out count for nothing once a later one
/// has begun.
class Overall {
 public:
  Overall() = default;
  explicit Overall(const std::vector<ExpectedStage>& stages);

  /// What Progress tells; a stage that is not expected changes nothing.
  void update(const std::string& stage, std::uint64_t done, std::uint64_t total);
  /// A stage that has not begun will take so many times its share; 0: it is left out.
  void expect(const std::string& stage, double times);
  bool is_known() const noexcept { return done_ > 0; }
  double done() const noexcept { return done_; }  // 0 to 1

 private:
  struct Stage : ExpectedStage {
    double times = 1;  // its share
    bool began = false;
    double part = 0;         // done
    std::uint64_t last = 0;  // done in the pass under way
    int before = 0;          // passes that it has behind it
  };

  Stage* find(const std::string& name);
  std::size_t first_of_turns(std::size_t index) const;

  std::vector<Stage> stages_;
  std::size_t current_ = 0;  // the first stage of those under way
  double done_ = 0;
};

}  // namespace detent::cli
