// Options from Python's dicts, by the schema of src/config/.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "config/option.h"

namespace detent::python {

namespace nb = nanobind;

/// Options of a call from a dict of names and values, nested as the structs are: {"finetune": {"rounding": "gptq"}}.
/// What the dict does not say comes from the preset. Throws usage for a name that is none, or a value of another type.
Options read_options(const nb::dict& given, config::Command command);

/// The names at the top of the dict that a command takes.
std::vector<std::string> option_names(config::Command command);

}  // namespace detent::python
