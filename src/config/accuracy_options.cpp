// What is measured of accuracy, and what for.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr unsigned kQuantizing = kQuantize | kPlan;
constexpr std::string_view kAccuracy = "Accuracy";

const Option kRows[] = {
    {.name = "sensitivity",
     .at = DETENT_AT(accuracy.sensitivity),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kAccuracy,
     .help = "measure the error that each quantized value makes alone; auto: then leave in float what makes most of "
             "it, up to a tenth of the multiplications; report: only print it",
     .label = "auto|off|report",
     .detail = true},
    {.name = "equalize",
     .at = DETENT_AT(accuracy.equalize),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kAccuracy,
     .help = "auto: equalize the channel ranges of a value where that is measured to halve its error",
     .label = "auto|off",
     .detail = true},
    {.name = "accuracy-fallback",
     .at = DETENT_AT(accuracy.fallback),
     .commands = kQuantizing,
     .affects = Affects::integers,
     .group = kAccuracy,
     .help = "convolutions and matrix products for which 8 bits are too few stay in float, or get activations of 16 "
             "bits (for NPUs)",
     .label = "float32|int16"},
    {.name = "accuracy-target",
     .at = DETENT_AT(accuracy.target),
     .commands = kQuantizing | kSearch,
     .affects = Affects::integers,
     .results = kIntegers | kBlocks,
     .group = kAccuracy,
     .help = "leave as many convolutions and matrix products in float as it takes to reach this value of the metric, "
             "and no more; with --weights-only, give each weight as few bits as reach it",
     .label = "X",
     .usual = kQuantize},
    {.name = "accuracy-metric",
     .at = DETENT_AT(accuracy.metric),
     .commands = kQuantizing | kSearch,
     .affects = Affects::integers,
     .results = kIntegers | kBlocks,
     .group = kAccuracy,
     .help = "cosine or sqnr (dB) of the worst output; perplexity of decoders: the float model's, divided by that of "
             "the quantized one; command: the share of the float model's score",
     .label = "cosine|sqnr|perplexity|command"},
    {.name = "accuracy-command",
     .at = DETENT_AT(accuracy.command),
     .commands = kQuantizing | kSearch,
     .affects = Affects::integers,
     .results = kIntegers | kBlocks,
     .group = kAccuracy,
     .help = "a program that takes a model's path and prints its score; larger is better",
     .label = "CMD"},
};

}  // namespace

std::vector<Option> accuracy_options() { return only_for(kIntegers, kRows); }

}  // namespace detent::config
