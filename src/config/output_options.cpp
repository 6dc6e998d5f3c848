// What is written and printed beside the result itself.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr std::string_view kOutput = "Output";

const Option kRows[] = {
    {.name = "external-data-threshold",
     .at = DETENT_AT(external_data_threshold),
     .commands = kQuantize,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "put tensors of at least this size into OUTPUT.data",
     .label = "SIZE",
     .fallback = "only when the model would pass 2 GiB",
     .form = Form::bytes},
    {.name = "prepared-output",
     .at = DETENT_AT(prepared_output),
     .commands = kQuantize,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "also write the float model as it was calibrated",
     .label = "FILE"},
    {.name = "profile",
     .at = DETENT_AT(profile),
     .commands = kQuantize | kCalibrate,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "write a profile (YAML) while running",
     .label = "FILE"},
    {.name = "report",
     .at = DETENT_AT(report),
     .commands = kQuantize | kCalibrate,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "write a report (HTML): time, memory, bottleneck, layers, histograms, errors",
     .label = "FILE"},
    {.name = "trace",
     .at = DETENT_AT(trace),
     .commands = kQuantize | kCalibrate,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "write a trace of stages and layers, for Perfetto",
     .label = "FILE"},
    {.name = "layers",
     .at = DETENT_AT(layers),
     .commands = kCompare | kInspect,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "list this many layers, of compare the worst inner values; 0: all",
     .label = "N"},
    {.name = "outputs-only",
     .at = DETENT_AT(outputs_only),
     .commands = kCompare,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "compare the models' outputs only, no inner values"},
    {.name = "pending-limit",
     .at = DETENT_AT(pending_limit),
     .commands = kCompare,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "memory for inner values of the float model until their quantized counterparts are there",
     .label = "SIZE",
     .form = Form::bytes},
    {.name = "json",
     .at = DETENT_AT(json),
     .commands = kQuantize | kCalibrate | kPlan | kCompare | kInspect,
     .affects = Affects::nothing,
     .group = kOutput,
     .help = "print the result as JSON"},
};

}  // namespace

std::vector<Option> output_options() { return {std::begin(kRows), std::end(kRows)}; }

}  // namespace detent::config
