// What a search over formats looks for.
#include "config/option.h"

namespace detent::config {
namespace {

constexpr std::string_view kSearching = "Search";

const Option kRows[] = {
    {.name = "output",
     .at = DETENT_AT(output),
     .commands = kSearch,
     .affects = Affects::nothing,
     .group = "Files",
     .help = "folder to make: front.json, front.html and the chosen models",
     .label = "FOLDER",
     .letter = "-o",
     .required = kSearch,
     .usual = kSearch},
    {.name = "max-size",
     .at = DETENT_AT(max_size),
     .commands = kSearch,
     .affects = Affects::nothing,
     .group = kSearching,
     .help = "bytes that the model may have with its data, as in 12MiB",
     .label = "SIZE",
     .fallback = "none",
     .form = Form::bytes,
     .usual = kSearch},
    {.name = "formats",
     .at = DETENT_AT(formats),
     .commands = kSearch,
     .affects = Affects::integers,
     .group = kSearching,
     .help = "formats that convolutions and matrix products may have",
     .label = "A,B,…",
     .fallback = "fp32,w8,int8,a16w8,int8-dynamic,q8,q4,q2",
     .usual = kSearch},
    {.name = "points",
     .at = DETENT_AT(points),
     .commands = kSearch,
     .affects = Affects::nothing,
     .group = kSearching,
     .help = "mixed models that are written and measured at the most",
     .label = "N",
     .usual = kSearch},
    {.name = "machines",
     .at = DETENT_AT(machines),
     .commands = kSearch,
     .affects = Affects::nothing,
     .group = kSearching,
     .help = "machines to choose from, with their times of operators and prices; see docs/search.md",
     .label = "FILE",
     .usual = kSearch},
    {.name = "requests",
     .at = DETENT_AT(requests),
     .commands = kSearch,
     .affects = Affects::nothing,
     .group = kSearching,
     .help = "that the machines have to serve together, each second",
     .label = "N",
     .bounds = {.min = 0, .max = 1e12, .above = true},
     .usual = kSearch},
};

}  // namespace

std::vector<Option> search_options() { return {std::begin(kRows), std::end(kRows)}; }

}  // namespace detent::config
