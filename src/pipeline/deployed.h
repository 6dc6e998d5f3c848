// What the written model does beside the float one, where both run as deployed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/sample.h"
#include "detent/compare.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/model/finish.h"

namespace detent::pipeline {

/// QuantizeResult::latency, on samples if there are some that can be read again, else on synthetic inputs. Without room
/// for both models, or where a sample takes too long beside the run (`sample_seconds`; 0: not known), it stays unset,
/// and a note says so.
void time_models(const QuantizeOptions& options, const std::vector<data::InputSpec>& inputs,
                 const exec::Runtime& runtime, profile::Profiler& profiler, QuantizeResult& result,
                 double sample_seconds = 0);

/// What a model can be timed with; nullopt, and a note, where no sample can be of it (text, sequences).
std::optional<std::vector<data::InputSpec>> inputs_to_time(const onnx::Model& model, QuantizeResult& result);

/// The same for several results of one model, which are timed together.
struct Deployed {
  std::filesystem::path file;
  QuantizeResult* result;
};
void time_models(const QuantizeOptions& options, const std::vector<Deployed>& quantized,
                 const std::vector<data::InputSpec>& inputs, const exec::Runtime& runtime, profile::Profiler& profiler,
                 double sample_seconds = 0);

/// QuantizeResult::accuracy on all samples, or as many as take two seconds, where it is known on fewer and latencies
/// are known.
void measure_on_more(const QuantizeOptions& options, QuantizeResult& result, run::FloatResults* kept);

/// QuantizeResult::accuracy: SQNR and cosine of the worst output on the first samples, as the runtime computes the
/// file; where its CPU has no kernels, as devices do. Without room for both models, or where the samples can be read
/// only once, it stays unset, and a note says so. Gives back what was compared inside, where a report is asked for.
std::optional<Comparison> compare_models(const QuantizeOptions& options, const std::filesystem::path& work_dir,
                                         profile::Profiler& profiler, QuantizeResult& result);

/// Reads the samples that the result is going to be compared on, before anything is done: throws bad_input where one is
/// not what the model takes, or is to take (--shape).
void check_samples(const QuantizeOptions& options);

/// Whether a file of no use is refused before it takes its name: where a target other than ONNX Runtime's CPU computes
/// in such numbers, and there are samples to see it on.
bool must_be_of_use(const QuantizeOptions& options);
/// Throws bad_input where QuantizeResult::accuracy is that of such a file. `kind`: its numbers, in words.
void refuse_useless(const QuantizeOptions& options, const QuantizeResult& result, std::string_view kind);

/// The same layer by layer, for a report; without room for it under a memory budget it is unset, and a note says so.
std::optional<Comparison> compare_layers(const QuantizeOptions& options, const exec::Runtime& runtime,
                                         std::size_t samples, QuantizeResult& result);

/// Whether the values between the layers of the result are others than the float model's, since they are rotated.
bool is_rotated(const QuantizeOptions& options, const QuantizeResult& result);

/// Why the model in this file, which has this cache in other numbers than the one of `options`, cannot run here or not
/// on these samples; empty if it can.
std::string reason_against_running_cache(const run::KvCacheRun& cache, const QuantizeOptions& options,
                                         const std::filesystem::path& quantized, const exec::Runtime& runtime);

/// Writes a model there, lets it and the float model run over the samples, and removes it.
run::DeployedFidelity fidelity_of(onnx::Model model, const std::filesystem::path& path, const QuantizeOptions& options,
                                  const exec::Runtime& runtime, data::SampleSource& samples);

// Layers of a written model that the runtime computes otherwise than their integers say.

struct ComputedOtherwise {
  std::vector<std::string> nodes;  // by Node::id(), worst first
  std::string words;               // for a note: "the runtime computes 'conv1' otherwise than its integers say"
};

/// Of QuantizeOptions::output, on its first samples: those that `prepared` has under the same name. None where the
/// samples can be read only once, and where both models side by side, of which one takes `activations` at its peak, do
/// not keep to the memory budget. Throws what verify() throws.
ComputedOtherwise computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared,
                                     std::uint64_t activations);

}  // namespace detent::pipeline
