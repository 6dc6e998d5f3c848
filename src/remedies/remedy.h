// A way to make a quantized model better. A remedy is one file with a class behind this interface and a row in
// list.h.
#pragma once

#include "remedies/draft.h"
#include "remedies/evaluator.h"

namespace detent::remedies {

class Remedy {
 public:
  Remedy() = default;
  Remedy(const Remedy&) = delete;
  Remedy& operator=(const Remedy&) = delete;
  virtual ~Remedy() = default;

  /// Looks for something better than the draft; false where there is nothing.
  virtual bool propose(const Draft& draft, Evaluator& evaluator) = 0;
  /// Whether the proposal as a whole is better, measured on samples from all over the set: what helps each value alone
  /// on a few samples may not help all of them on others.
  virtual bool is_better(const Draft& draft, Evaluator& evaluator) = 0;
  /// Puts the proposal in the draft's place, and reports it in `draft.result`.
  virtual void keep(Draft& draft, Evaluator& evaluator) = 0;
  /// Reports what is worth telling whether the proposal was kept or not.
  virtual void report(AccuracyResult& result) const { static_cast<void>(result); }
};

}  // namespace detent::remedies
