// The iterations of AdaRound and AdaQuant, on the CPU or on devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "solve/layers/adaquant_variables.h"
#include "solve/layers/adaround_variables.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// AdaRound in Gram form.
class AdaRoundIterations {
 public:
  virtual ~AdaRoundIterations() = default;
  /// Iterations [first, last) of all rows. The loss after them, the mean over positions, if it is asked for.
  virtual double iterate(std::size_t first, std::size_t last, bool loss) = 0;
  /// As they are after the last iteration. Whoever changes them calls changed().
  virtual AdaRoundVariables& variables() = 0;
  virtual void changed() = 0;
};

/// AdaQuant in Gram form.
class AdaQuantIterations {
 public:
  virtual ~AdaQuantIterations() = default;
  virtual void iterate(std::size_t first, std::size_t last) = 0;
  /// Of each row with the integers that there are now, in the same unit each time. A constant may be missing: only
  /// differences of a row's errors count.
  virtual std::vector<double> errors() = 0;
  /// What to add to the sum of errors() and divide it by for the mean loss.
  virtual double constant() const = 0;
  virtual double divisor() const = 0;
  virtual AdaQuantVariables& variables() = 0;
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

/// Through all iterations, in the intervals of interval_ends(), with progress, state and early stop as `config` and
/// `control` say.
Integers run(AdaRoundIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Integers run(AdaQuantIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Solution run(StreamedIterations& problem, const FinetuneConfig& config, const SolveControl& control);

}  // namespace detent::solve
