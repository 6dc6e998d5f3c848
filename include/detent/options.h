// The options of all calls. Each call reads those that concern it (docs/options.md lists them by command); others do
// nothing there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/config.h"
#include "detent/device.h"
#include "detent/profile.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"

namespace detent {

class Consumer;
struct LayerTuning;

struct Options {
  // What goes in, and where the result goes.

  /// A file, or a folder as onnxruntime-genai, optimum and transformers.js have them; then the output of quantize() is
  /// a new folder of the same layout, with the other files in it. Of compare() and verify() the float model.
  std::filesystem::path model;
  std::filesystem::path quantized_model;      // of compare() and verify()
  std::vector<std::filesystem::path> models;  // of bench()
  /// The quantized model; of calibrate() the statistics file; of search() a folder that is made, or is there and empty.
  std::filesystem::path output;
  /// Samples in files. For quantize() these, or statistics made from them earlier, or both; the statistics are then
  /// checked against the samples. Without them bench() makes inputs up from the declared shapes: floats in [0, 1),
  /// integers 1.
  std::optional<std::filesystem::path> calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run. verify() reads them several times.
  SampleStream* samples = nullptr;
  /// How a command line gives them, as in "--images photos"; for SearchPoint::command.
  std::string samples_given;
  std::optional<std::filesystem::path> statistics;
  std::size_t max_samples = 0;  // 0: all; of bench() and verify() the first 16
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  /// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
  std::vector<std::string> input_values;
  /// Count and ignore NaN and infinite values instead of stopping at the first.
  bool allow_nonfinite = false;

  // What quantize() makes. For calibrate() `config` selects the activations that are observed; check() and verify()
  // read its target, inspect(), bench() and check() its input_shapes.

  /// The name of the format that the options below make, as options_of_format() sets them; empty: they speak for
  /// themselves.
  std::string format = {};
  /// Passes that prepare the float model and are left out, by their names: to find the one that does harm.
  std::vector<std::string> skip_passes = {};
  /// Several results of one model, by the names that transformers.js has for them: fp32, fp16, q8, int8, uint8, q4,
  /// q4f16. Each is what it is with options of its own (docs/language-models.md); the output is then a new folder, also
  /// of a file, and samples go through the model once.
  std::vector<std::string> family;
  /// The format of single nodes: "NODE=FORMAT", by name or '^' pattern, with fp32, int8, a16w8, int8-dynamic, q8, q4 or
  /// q2; of several entries for a node the last counts, and nodes without one stay in float. Not empty: one model in
  /// all these formats (docs/search.md).
  std::vector<std::string> node_formats;
  QuantConfig config = preset_config("balanced");
  MethodConfig method = preset_method("balanced");
  std::vector<TensorOverride> overrides;
  /// Of search() target, metric, command and score, which judge whole models.
  AccuracyConfig accuracy;
  OptimizeFor optimize_for = OptimizeFor::latency;
  /// What all weights together are worth as integers, in percent of the model's time in float: the larger, the smaller
  /// the file and the slower the model may become. Not for OptimizeFor::accuracy and size.
  double size_worth = 2;
  /// Seconds that a sample may take on this machine, as measured. With it, or with weights_only.max_size where weights
  /// alone are not asked for, the format of each node is searched as search() does, and the model that meets them, and
  /// the accuracy target, is made. Throws resource, naming the nearest, where none does.
  std::optional<double> max_latency;
  /// How long operators take; what is missing is measured and added. Unset: a file of this machine in the user's cache.
  std::optional<std::filesystem::path> kernel_table;
  FinetuneConfig finetune;
  /// Quantizes weights alone; samples are then optional, and what concerns activations is not used. Its max_size is
  /// that of whole models where they are searched.
  WeightsOnlyConfig weights_only;
  KvCacheConfig kv_cache;
  /// Of calibrate(): without histograms only the method minmax works later. With MethodConfig::most_common it also
  /// finds the best power-of-two scale for each sample.
  bool histograms = true;

  // What compare() and verify() look at.

  /// Compare outputs only, not inner values.
  bool outputs_only = false;
  /// Limit, in bytes, of float values kept in memory until the quantized model has computed theirs.
  std::uint64_t pending_limit = std::uint64_t{8} << 20;
  /// Round what nodes of 16-bit floats give to their type, as devices with such kernels do; CPUs compute them in
  /// float32.
  bool round_floats = true;
  /// ONNX Runtime's execution provider that verify() runs the quantized model on; empty: the target's.
  std::string provider;
  /// Runs the quantized model instead of ONNX Runtime; must outlive the run.
  Consumer* consumer = nullptr;

  // What bench() does.

  std::size_t runs = 0;  // of each model; 0: as many as `seconds` allows
  double seconds = 2;    // of timed runs for each model, about
  /// Also time each operator type, by the runtime's own profile of further runs.
  bool by_operator = false;
  /// Measure the peak memory of each model in a process of its own, which `program` (the command detent) is started
  /// for.
  bool memory = true;
  std::filesystem::path program;

  // What search() looks for: models within max_latency, weights_only.max_size and accuracy.target, in any combination.
  // Nothing asked for: the smallest, the fastest and the most accurate model that lie within 20 dB of the float one.

  bool may_be_float = true;  // whether the float model may be the one that meets them
  /// Formats that products may have; empty: fp32, int8, a16w8, int8-dynamic, q8, q4 and q2.
  std::vector<std::string> formats;
  /// Mixed models that are written and measured at the most, beside one of each format.
  std::size_t points = 8;
  /// A JSON file of machines to choose from: {"machines": [{"name": "small", "kernel-table": "small.json", "threads":
  /// 4, "memory": "8GiB", "price": 0.17}]}. The table, by its path from that file, has the times of the model's
  /// operators there, as a search on that machine writes them. Each thread computes one request at a time; the price is
  /// of an hour. Then max_latency is the limit of those machines, and latencies here are of one thread.
  std::optional<std::filesystem::path> machines;
  /// That the machines have to serve together, each second.
  std::optional<double> requests;

  // How a call runs.

  /// Devices for calibration (the first only) and fine-tuning. Of compare() where the float model runs, and for inner
  /// values the quantized one; as deployed that runs on the CPU.
  DeviceConfig device;
  int threads = 0;  // of the runtime; 0: one per core
  int workers = 1;  // samples run at a time
  /// ONNX Runtime's library; unset: the usual places are searched.
  std::optional<std::filesystem::path> runtime;
  /// Of commands that only read models: the two time limits, and for memory_budget what the graph of a model may take,
  /// and one file of samples, without what the runtime takes. At the end of its time search() gives the best of what is
  /// measured by then.
  Resources resources;

  // What is written and told beside the result.

  /// Tensors of at least this many bytes go to a file beside the output; unset: only if the model would exceed 2 GiB.
  std::optional<std::uint64_t> external_data_threshold;
  /// The name of that file is the output's and this; empty: `OUTPUT.<16 hex digits>.data` by its contents, so that a
  /// model that stands at the output works until the new one takes its place, and its own data file goes then. With a
  /// fixed name both files are replaced one after the other.
  std::string external_data_suffix = {};
  /// Also write the float model as it was calibrated, after the graph rewrites.
  std::optional<std::filesystem::path> prepared_output;
  std::optional<std::filesystem::path> profile;
  /// Records the stages instead of a profile of this run's own; must outlive the run.
  Profiler* profiler = nullptr;
  /// An HTML file that shows where time, memory and bytes went, and the error of each layer and tensor. For it, both
  /// models run on a few samples if there are calibration data. Of several processes, rank 0 writes its own.
  std::optional<std::filesystem::path> report;
  /// Stages and layers in the Chrome trace format.
  std::optional<std::filesystem::path> trace;
  /// The command line, for the report.
  std::vector<std::string> command;
  /// Time the float and the quantized model side by side at the end, for about 3 % of a run of quantize(), at least
  /// 0.2 s.
  bool bench = true;
  /// Notes that the result's begin with: what was decided before the call.
  std::vector<std::string> notes;
  Progress progress;
  /// Called when a run knows that a stage to come takes so many times as long as it does as a rule; 0: it is left out.
  std::function<void(const std::string& stage, double times)> stage_expected;
  /// Called for each layer as soon as fine-tuning has solved it.
  std::function<void(const LayerTuning&)> layer_tuned;
  std::stop_token stop;
};

}  // namespace detent
