// The way of AdaRound and AdaQuant through their iterations, wherever those are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "finetune/rounding_variables.h"
#include "finetune/soft_rounding.h"
#include "finetune/solver.h"
#include "finetune/straight_through.h"

namespace detent::finetune {

/// AdaRound in Gram form.
class SoftIterations {
 public:
  virtual ~SoftIterations() = default;
  /// Iterations [first, last) of all rows. The loss after them, the mean over columns, if it is asked for.
  virtual double iterate(std::size_t first, std::size_t last, bool loss) = 0;
  /// As they are after the last iteration. Who changes them says so by changed().
  virtual SoftRounding& variables() = 0;
  virtual void changed() = 0;
};

/// AdaQuant in Gram form.
class ThroughIterations {
 public:
  virtual ~ThroughIterations() = default;
  virtual void iterate(std::size_t first, std::size_t last) = 0;
  /// Of each row with the integers that there are now, in the same unit each time. A constant may be missing: only
  /// differences of a row's errors count.
  virtual std::vector<double> errors() = 0;
  /// What to add to the sum of errors() and divide it by for the mean loss.
  virtual double constant() const = 0;
  virtual double divisor() const = 0;
  virtual StraightThrough& variables() = 0;
  virtual void changed() = 0;
};

/// Either of them in mini-batches.
class StreamedIterations {
 public:
  virtual ~StreamedIterations() = default;
  /// The mean of the losses of iterations [first, last).
  virtual double iterate(std::size_t first, std::size_t last) = 0;
  virtual RoundingVariables& variables() = 0;
  /// How the work is done, as far as it was chosen by measuring: a resumed layer keeps to it.
  virtual std::uint64_t& choice() = 0;
  virtual void changed() = 0;
};

/// Through all iterations, in the intervals of checkpoints(), with progress, state and early stop as `config` and
/// `control` say.
Integers run(SoftIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Integers run(ThroughIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Solution run(StreamedIterations& problem, const FinetuneConfig& config, const SolveControl& control);

}  // namespace detent::finetune
