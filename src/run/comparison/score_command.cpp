#include "run/comparison/score_command.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/paths.h"
#include "run/command.h"

namespace detent::run {
namespace {

constexpr const char* kWhatItDoes = "it gets a model's path as its last argument and prints the score";

std::optional<double> last_number(const std::string& text) {
  std::optional<double> last;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    double value = 0;
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (status == std::errc() && end == word.data() + word.size()) last = value;
  }
  return last;
}

}  // namespace

double score_by_command(const std::string& command, const std::filesystem::path& model, const std::stop_token& stop) {
  const std::string line = command + " " + quoted(paths::absolute(model).string());
  const auto [status, output] = run_command(line, stop);
  if (status != 0)
    throw bad_input(fmt::format("--accuracy-command: '{}' ended with status {}", line, status), kWhatItDoes);
  const auto score = last_number(output);
  if (!score) throw bad_input(fmt::format("--accuracy-command: '{}' printed no number", line), kWhatItDoes);
  return *score;
}

double share_of_float_score(double score, double float_score) {
  if (float_score == 0 || !std::isfinite(float_score))
    throw bad_input(fmt::format("the float model's score is {}, and a target is a share of it", float_score),
                    "let the command or function give a score that is finite and not zero for the float model");
  return float_score > 0 ? score / float_score : 2 - score / float_score;
}

double share_of_float_score(const AccuracyConfig& accuracy, const std::filesystem::path& float_model,
                            const std::filesystem::path& model, std::optional<double>& float_score,
                            const std::stop_token& stop) {
  const auto score_of = [&](const std::filesystem::path& path) {
    return accuracy.score ? accuracy.score(path) : score_by_command(accuracy.command, path, stop);
  };
  if (!float_score) float_score = score_of(float_model);
  return share_of_float_score(score_of(model), *float_score);
}

}  // namespace detent::run
