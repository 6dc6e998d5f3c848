// Stages of the formats that take one step, and of several formats in one model.
#pragma once

#include <string>
#include <vector>

#include "pipeline/run.h"
#include "quantization/placement/placement.h"

namespace detent::pipeline {

// Forms that are placed from the graph and written at once: floats with common exponents, as AMD's NPUs read them, and
// integers whose activations get their scales while the model runs.

struct Form {
  config::Result result;
  quantization::Placement (*place)(const Run&);  // of Run::prepared
  onnx::Model (*emit)(Run&);                     // which tells what was placed, too
  bool has_integers;                             // of 8 bits, in the place of weights
};

/// That of the run's result.
const Form& form_of(const Run& run);

/// Run::model in it.
void emit_form(Run& run);

/// Puts another form in the place of integers with fixed scales where that serves better: scales that are found while
/// the model runs, where the results of fixed ones are far from the float model's, or where this machine runs it faster
/// and it is as close; float, where what was chosen runs slower than that; weights of 8 bits alone, where size counts
/// and the file is smaller so.
void try_other_forms(Run& run);

// Several formats in one model.

/// Whether nodes get integers whose scales come from samples. Then all nodes that can have them are calibrated,
/// remedied and tuned together, as in a run of int8 alone, and a mixture takes those that it asks for.
bool mixes_integers(const Recipe& recipe);

/// Better integers for the weights of all these nodes, where measuring speaks for it.
void tune_mixed_weights(Run& run);

/// The model whose nodes have these formats, given as QuantizeOptions::node_formats are, and what there is to tell of
/// it. A run can make several; each is the same as of a run of its own. Throws usage for entries that match nothing,
/// for formats that a node cannot have, and where all nodes would stay in float.
onnx::Model mixture(Run& run, const std::vector<std::string>& node_formats, QuantizeResult& told);

/// Run::model, the mixture that the options ask for.
void mix_formats(Run& run);

}  // namespace detent::pipeline
