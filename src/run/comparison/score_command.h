// A user's own measure of a model: a command that prints a number.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "detent/config.h"

namespace detent::run {

/// Runs `command` (see run_command) with the quoted path of the model as its last argument; the last number that it
/// prints. Throws bad_input when the command fails or prints no number, and interrupted.
double score_by_command(const std::string& command, const std::filesystem::path& model, const std::stop_token& stop);

/// A score as a share of the float model's: 1 when they are equal, less when `score` is worse. With f for the float
/// score it is 1 - (f - score) / |f|, which for positive scores is score / f, and for negative ones (a loss with its
/// sign changed) falls below 1 as well when the score does: -0.2 beside -0.1 is a share of 0. Throws bad_input where
/// the float score is zero or no number, since there is no share of these.
double share_of_float_score(double score, double float_score);

/// The same of models, by AccuracyConfig::score or its command. `float_score` is measured once.
double share_of_float_score(const AccuracyConfig& accuracy, const std::filesystem::path& float_model,
                            const std::filesystem::path& model, std::optional<double>& float_score,
                            const std::stop_token& stop);

}  // namespace detent::run
