#include "pipeline/block_floats.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/block_float_words.h"
#include "config/wanted.h"
#include "detent/compare.h"
#include "pipeline/check_model.h"
#include "quantization/emit/block_floats.h"
#include "quantization/placement.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/quantize_result.h"
#include "run/single_run.h"

namespace detent::pipeline {
namespace {

using profile::Step;

constexpr std::size_t kCompared = 16;  // samples, if the user does not say how many

// One run: the stages in their order.
class Conversion : run::SingleRun {
 public:
  explicit Conversion(const QuantizeOptions& options) : SingleRun(options) {}

  QuantizeResult run() {
    prepare();
    convert();
    write();
    if (config::has_samples(options_)) compare_outputs();
    return finish();
  }

 private:
  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    SingleRun::prepare(open());
    append(prepared_.notes);
    write_prepared();
  }

  void convert() {
    const auto scope = profiler_.scope(Step::quantization_static);
    auto placement = run::place(prepared_, options_.config);
    // What keeps weights from being numbers at all is told before any work.
    quantization::scan_weights(prepared_.model, placement, options_.allow_nonfinite);
    append(placement.notes);
    const auto counts = run::count_nodes(prepared_.model, placement,
                                         [&](const auto& value) { return placement.find(value) != nullptr; });
    result_.nodes_quantized = counts.quantized;
    result_.nodes_in_float = counts.in_float;
    append(counts.notes);
    const auto format = options_.config.block_float;
    auto made = quantization::emit_block_floats(std::move(prepared_.model), prepared_.types, placement, format);
    converted_ = std::move(made.model);
    result_.notes.push_back(
        fmt::format("{} operators round to {}; the file's weights stay in float32, and ONNX Runtime runs it with AMD "
                    "Quark's operator library alone",
                    made.operators, config::word_of(config::words<BlockFloat>(), static_cast<int>(format))));
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    append(told_of_target(options_.config, converted_, runtime_));
    run::write_output(converted_, options_, result_);
  }

  void compare_outputs() {
    if (options_.samples != nullptr && !config::reads_twice(options_)) return;
    if (options_.samples != nullptr) options_.samples->rewind();
    const auto compared = compare({.float_model = options_.model,
                                   .quantized_model = options_.output,
                                   .calibration_data = options_.calibration_data.value_or(""),
                                   .samples = options_.samples,
                                   .max_samples = options_.max_samples == 0 ? kCompared : options_.max_samples,
                                   .batch_size = options_.batch_size,
                                   .threads = options_.threads,
                                   .outputs_only = true,
                                   .runtime = options_.runtime,
                                   .progress = options_.progress,
                                   .stop = options_.stop});
    result_.samples = compared.samples;
    const auto worst = std::min_element(compared.outputs.begin(), compared.outputs.end(),
                                        [](const auto& a, const auto& b) { return a.sqnr_db < b.sqnr_db; });
    if (worst == compared.outputs.end()) return;
    AccuracyResult accuracy;
    accuracy.samples = compared.samples;
    accuracy.sqnr_all_db = accuracy.sqnr_db = worst->sqnr_db;
    accuracy.cosine = worst->cosine;
    result_.accuracy = std::move(accuracy);
  }

  onnx::Model converted_;
};

}  // namespace

QuantizeResult convert_to_block_floats(const QuantizeOptions& options) { return Conversion(options).run(); }

}  // namespace detent::pipeline
