// What is known of the speed of operators, and what for.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr unsigned kQuantizing = kQuantize | kPlan;
constexpr std::string_view kSpeed = "Speed of the result";

const Option kRows[] = {
    {.name = "optimize-for",
     .at = DETENT_AT(optimize_for),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kSpeed,
     .help = "latency: operators that this machine runs faster in float stay in float; accuracy: integers must be a "
             "tenth faster; size: speed does not count",
     .label = "latency|accuracy|size"},
    {.name = "size-worth",
     .at = DETENT_AT(size_worth),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kSpeed,
     .help = "what all weights together are worth as integers, in percent of the model's time in float: larger numbers "
             "make the file smaller, and may make the model slower",
     .label = "PERCENT",
     .bounds = {.min = 0},
     .detail = true},
    {.name = "max-latency",
     .at = DETENT_AT(max_latency),
     .commands = kQuantize | kPlan | kSearch,
     .affects = Affects::nothing,
     .group = kSpeed,
     .help =
         "time that the model may take for one sample on this machine, as in 8ms; with it quantize searches for the "
         "format of each layer, as search does",
     .label = "TIME",
     .fallback = "none",
     .form = Form::duration,
     .bounds = {.min = 0, .above = true},
     .usual = kSearch},
    {.name = "kernel-table",
     .at = DETENT_AT(kernel_table),
     .commands = kQuantizing | kSearch,
     .affects = Affects::integers,
     .group = kSpeed,
     .help = "file with the times of operators, in float and in integers; missing ones are measured and added; by "
             "default a file of this machine in the user's cache",
     .label = "FILE",
     .detail = true},
};

}  // namespace

std::vector<Option> speed_options() { return only_for(kIntegers, kRows); }

}  // namespace detent::config
