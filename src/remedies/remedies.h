// What is done to a draft after calibration: remedies in their order, each kept only where it is measured to help.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "detent/quantize.h"
#include "graph/index.h"
#include "remedies/draft.h"
#include "remedies/evaluator.h"
#include "remedies/list.h"
#include "remedies/remedy.h"

namespace detent::remedies {

/// A result whose worst output is not this near to the float model's, in dB, is of no use.
inline constexpr double kUselessDb = 6;

/// Lets one remedy propose, judges the proposal, and keeps it where it is better. Whether it was kept.
bool apply(Remedy& remedy, Draft& draft, Evaluator& evaluator);

/// Applies the remedies that change the assignment, as far as the options ask for them, and fills `draft.result`: what
/// was done, how near the results are, and what makes the error that is left. Throws bad_input when the accuracy
/// command fails or prints no number, and for a target out of reach; resource when the budget cannot be met.
void improve(Draft& draft, Evaluator& evaluator);

/// The same for remedies that change the emitted model.
void improve_emitted(Draft& draft, Evaluator& evaluator);

/// The same for remedies that change how it is written, behind all others.
void improve_written(Draft& draft, Evaluator& evaluator);

/// Leaves nodes in float, by Node::id(), that the runtime computes otherwise than their integers say, and fills
/// `draft.result` anew.
void leave_in_float(Draft& draft, Evaluator& evaluator, const std::vector<std::string>& nodes);

/// Of an emitted model whose weights were tuned as asked, which may do less well than those that the target was reached
/// with: measures its score anew. Throws bad_input below the target.
void check_target(Draft& draft, Evaluator& evaluator);

/// Values with their errors, worst first.
std::vector<std::pair<std::string, double>> by_error(const Sensitivities& sensitivities);

/// The node that makes a value, or of a weight the one that reads it; empty: neither.
std::string node_of(const onnx::Model& model, const graph::Index& index, const std::string& value);

/// A note about results that are far although nothing was asked for, and what helps; empty where there is none.
std::string what_is_left(const Draft& draft, const QuantizeOptions& options);

}  // namespace detent::remedies
