// Arrays of numpy and the like, shared with the library.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "detent/samples.h"

namespace detent::python {

/// An array of Python's as one of the library. `what` stands for it in messages, as in "input 'x' of a sample".
NamedArray shared(std::string name, nanobind::handle value, const std::string& what);

/// An array of the library as one of numpy's; of float16, as numpy has it, of bfloat16 as uint16.
nanobind::object to_numpy(const NamedArray& array);

}  // namespace detent::python
