// How near a written model's results are to the float model's, where both run as deployed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/compare.h"
#include "detent/config.h"
#include "detent/quantize.h"
#include "exec/guarded_session.h"
#include "run/comparison/float_runs.h"

namespace detent::run {

struct DeployedFidelity {
  std::uint64_t samples = 0;
  std::size_t outputs = 0;                        // that have numbers to compare
  std::vector<std::string> without_numbers = {};  // outputs: text, sequences, maps and optionals
  std::vector<std::string> sample_names = {};
  double sqnr_db = 0;              // of the worst output
  double cosine = 0;               // the same
  double worst_sample_db = 0;      // of that sample, and output, which is farthest
  std::optional<double> cache_db;  // of the worst cache, where caches do not count
  std::optional<NextTokens> next_tokens;
  std::vector<std::string> lost_channels = {};  // a sentence each, see ChannelSums
  std::optional<ChannelGroup> worst_channels = {};
};

/// Whether the runtime has the kernels of what the file has in bfloat16. Its CPU has a few, such as Cast's.
bool runs_bfloat16(const exec::Runtime& runtime, const std::filesystem::path& file, const exec::GuardOptions& options);

/// On the samples from where `source` stands, at most so many. The model runs in a process of its own. The caches of
/// decoders (outputs named "present…") do not count where there are other outputs. Both models have the same inputs and
/// outputs. A float model of bfloat16 is run in float32 where the runtime has no kernels. `told` gets the number of
/// samples behind it. `kept` serves calls for the same float model and samples. Throws what the runtime and the samples
/// throw, and bad_input where there are no samples.
DeployedFidelity deployed_fidelity(const exec::Runtime& runtime, const std::filesystem::path& float_model,
                                   const std::filesystem::path& model, data::SampleSource& source, std::size_t most,
                                   const exec::GuardOptions& options,
                                   const std::function<void(std::uint64_t)>& told = {}, KeptFloatRuns* kept = nullptr);

/// Of outputs that are not compared.
std::vector<std::string> words_of_outputs(const DeployedFidelity& found);

/// What is told of a file's accuracy: of no samples where no output has numbers to compare; the other members stay as
/// they are.
void copy_fidelity(const DeployedFidelity& found, AccuracyResult& accuracy);

/// Of cosine, sqnr or perplexity; the larger the better. Throws bad_input where the model tells no next tokens and
/// perplexity is asked for.
double metric_value(const DeployedFidelity& fidelity, AccuracyMetric metric);

}  // namespace detent::run
