// Trials that run only a part of the model: from where a value is made to a little behind it, where the error is taken.
// Enough to compare ways to round that value, at a fraction of an inference.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "data/sample.h"
#include "remedies/trial_model.h"
#include "remedies/trials.h"
#include "run/context.h"

namespace detent::remedies {

/// Cuts a model into at most `most` parts of about the same work, where few values cross: positions between nodes, both
/// ends among them.
std::vector<int> parts_of(const onnx::Model& model, const graph::ValueTypes& static_types, std::size_t most);

/// Runs each trial from the start of the part that holds the first of what it rounds to the end of the next part, on
/// values of the float model. The points of a result are the floats that later parts read, and the points of the trial
/// model that are made on the way; there are no outputs. Keeps the values that cross a cut in memory, of all samples.
/// `parts` are positions of the trial model.
std::vector<TrialResult> run_near_trials(const run::Context& context, const TrialModel& model,
                                         const std::vector<int>& parts, std::span<const Trial> trials,
                                         data::SampleSource& source, TrialSamples samples);

/// The part in which a trial begins.
std::size_t part_of(const TrialModel& model, const graph::Index& index, const std::vector<int>& parts,
                    const Trial& trial);

}  // namespace detent::remedies
