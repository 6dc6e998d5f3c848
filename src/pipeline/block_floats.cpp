#include "pipeline/block_floats.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "config/block_float_names.h"
#include "config/derived.h"
#include "pipeline/check_model.h"
#include "pipeline/deployed.h"
#include "quantization/emit/block_floats.h"
#include "quantization/placement.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/quantize_result.h"
#include "run/single_run.h"

namespace detent::pipeline {
namespace {

using profile::Step;

// One run: the stages in their order.
class Conversion : run::SingleRun {
 public:
  explicit Conversion(const QuantizeOptions& options) : SingleRun(options) {}

  QuantizeResult run() {
    prepare();
    convert();
    write();
    if (config::has_samples(options_) && !must_be_of_use(options_)) compare(options_.output);
    if (result_.accuracy) result_.samples = result_.accuracy->samples;
    return finish();
  }

 private:
  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    SingleRun::prepare(open());
    check_samples(options_);
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
        fmt::format("{} that round{} to {}; the file's weights stay in float32, and ONNX Runtime runs it with AMD "
                    "Quark's operator library alone",
                    counted(made.operators, "operator"), made.operators == 1 ? "s" : "",
                    config::word_of(config::enum_names<BlockFloat>(), static_cast<int>(format))));
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    TargetNotes told;
    SingleRun::write(converted_, {}, [&](const auto& file) {
      if (must_be_of_use(options_)) {
        compare(file);
        refuse_useless(options_, result_, "block floats");
      }
      told = target_notes(options_, file, runtime_);
    });
    append(told.lines);
  }

  void compare(const std::filesystem::path& file) {
    auto options = options_;
    options.output = file;
    result_.model_bytes_after = run::size_on_disk(onnx::read_model(file));
    report_.comparison = compare_models(options, work_->path(), profiler_, result_);
  }

  onnx::Model converted_;
};

}  // namespace

QuantizeResult convert_to_block_floats(const QuantizeOptions& options) { return Conversion(options).run(); }

}  // namespace detent::pipeline
