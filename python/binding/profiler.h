// detent.Profiler: one profile of several runs and of what the caller does between them.
#pragma once

#include <nanobind/nanobind.h>

#include <map>

#include "detent/profile.h"

namespace detent::python {

class PythonProfiler {
 public:
  explicit PythonProfiler(const std::optional<std::filesystem::path>& yaml) : profiler_(yaml) {}

  int begin(std::string_view name) {
    open_.emplace(++last_, profiler_.scope(name));
    return last_;
  }
  void end(int scope) { open_.erase(scope); }
  void checkpoint(std::string_view name) { profiler_.checkpoint(name); }
  void finish() {
    open_.clear();
    profiler_.finish();
  }
  Profiler& native() noexcept { return profiler_; }

 private:
  Profiler profiler_;
  std::map<int, Profiler::Scope> open_;  // destroyed first
  int last_ = 0;
};

/// Defines the class in the module.
void bind_profiler(nanobind::module_& module);

}  // namespace detent::python
