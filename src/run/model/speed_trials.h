// Choices between float and integers, tried as whole models: the runtime fuses operators and changes layouts between
// them, which times of single operators do not show.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "run/model/prepare.h"
#include "speed/choice.h"

namespace detent::run {

struct SpeedTrials {
  const Prepared& prepared;
  const speed::TimedModel& subject;     // the prepared model with static shapes
  const std::vector<bool>& candidates;  // a flag for each node
  const QuantizeOptions& options;
  const exec::Runtime& runtime;
  const std::vector<std::vector<data::Array>>& samples;  // that the models run on
  const std::filesystem::path& scratch;                  // for working files
  /// Of activations, where how much the model computes depends on its values; empty: they are made up.
  const calibration::Ranges& ranges;
};

/// Times the model in float, on integers, and as the times of single operators say (`times`, null where one is not
/// known); what operators and conversions took there corrects these times, and the choice is made again, at most three
/// times. Returns the fastest of all that were tried, by the processor's time of the shortest run on one thread. Throws
/// what Session throws.
speed::FasterInFloat choose_by_trials(const SpeedTrials& trials, const speed::TimesOf& times,
                                      const speed::SpeedGoal& goal);

/// Processor seconds of the shortest run of a model, on one thread.
double seconds_of_model(const onnx::Model& model, const exec::Runtime& runtime,
                        const std::vector<std::vector<data::Array>>& samples, const std::stop_token& stop);

/// Names a model by its operators and the shapes of its inputs, not by the values of weights.
std::string key_of_model(const onnx::Model& model, const std::vector<data::Array>& sample);

/// Names what the choice depends on: operators, shapes and options, not the values of weights.
/// `by_values`: what is computed depends on values.
std::string key_of_choice(const speed::TimedModel& subject, const std::vector<bool>& candidates,
                          const std::vector<std::string>& kernels, const speed::SpeedGoal& goal, bool by_values);

}  // namespace detent::run
