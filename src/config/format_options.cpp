// What integers are made, and of what.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr unsigned kQuantizing = kQuantize | kPlan;
constexpr unsigned kCalibrating = kQuantizing | kCalibrate;
constexpr std::string_view kFormat = "Format";
constexpr std::string_view kSelection = "Selection";
constexpr std::string_view kNames = "A,B,…";

const Option kRows[] = {
    {.name = "activation-type",
     .at = DETENT_AT(config.activation_type),
     .commands = kQuantizing,
     .affects = Affects::statistics,
     .group = kFormat,
     .help = "integer type of activations; types of 4 bits are for weights only",
     .label = "TYPE"},
    {.name = "weight-type",
     .at = DETENT_AT(config.weight_type),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "integer type of weights",
     .label = "TYPE",
     .fallback = "int8"},
    {.name = "activation-symmetric",
     .at = DETENT_AT(config.activation_symmetric),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "zero point of activations in the middle of the type",
     .off = "activation-asymmetric",
     .off_help = "zero point of activations as their range asks for"},
    {.name = "weight-symmetric",
     .at = DETENT_AT(config.weight_symmetric),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "zero point of weights in the middle of the type",
     .fallback = "symmetric; with --weight-type uint8, uint16 or uint4: asymmetric",
     .off = "weight-asymmetric",
     .off_help = "zero point of weights as their range asks for; per-channel weights are always symmetric"},
    {.name = "per-channel",
     .at = DETENT_AT(config.per_channel),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "one scale for each output channel of a weight",
     .off = "per-tensor",
     .off_help = "one scale for each weight"},
    {.name = "weight-range",
     .at = DETENT_AT(config.weight_range),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "how far weights use their type. pairs: int8 weights as far as no two of them saturate together on x86 "
             "CPUs without VNNI; reduced: 7 of 8 bits",
     .label = "RANGE",
     .fallback = "pairs; --preset plain: full"},
    {.name = "power-of-two-scale",
     .at = DETENT_AT(config.power_of_two_scale),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kFormat,
     .help = "round scales up to powers of two"},

    {.name = "op-types",
     .at = DETENT_AT(config.op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kSelection,
     .help = "quantize only these operator types",
     .label = kNames,
     .fallback = "as the preset says"},
    {.name = "exclude-op-types",
     .at = DETENT_AT(config.exclude_op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kSelection,
     .help = "leave these operator types in float",
     .label = kNames},
    {.name = "nodes",
     .at = DETENT_AT(config.nodes),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kSelection,
     .help = "quantize only these nodes; '^…' is a regular expression over the whole name",
     .label = kNames,
     .fallback = "all"},
    {.name = "exclude-nodes",
     .at = DETENT_AT(config.exclude_nodes),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kSelection,
     .help = "leave these nodes in float; '^…' is a regular expression over the whole name",
     .label = kNames},
    {.name = "passthrough-op-types",
     .at = DETENT_AT(config.passthrough_op_types),
     .commands = kCalibrating,
     .affects = Affects::statistics,
     .group = kSelection,
     .help = "outputs of these types take their input's statistics, as those of Reshape, Transpose and the like do",
     .label = kNames},
};

}  // namespace

std::vector<Option> format_options() { return {std::begin(kRows), std::end(kRows)}; }

}  // namespace detent::config
