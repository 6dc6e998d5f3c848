#include "profiler.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

namespace detent::python {
namespace nb = nanobind;

void bind_profiler(nb::module_& module) {
  nb::class_<PythonProfiler>(module, "Profiler")
      .def(nb::init<const std::optional<std::filesystem::path>&>(), nb::arg("yaml").none())
      .def("begin", &PythonProfiler::begin, nb::arg("name"))
      .def("end", &PythonProfiler::end, nb::arg("scope"))
      .def("checkpoint", &PythonProfiler::checkpoint, nb::arg("name"))
      .def("finish", &PythonProfiler::finish)
      .def_prop_ro("peak_memory", [](PythonProfiler& self) { return self.native().peak_memory(); });
}

}  // namespace detent::python
