// What a run that makes one model begins and ends with; the stages between are its own.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "detent/quantize.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"

namespace detent::run {

class SingleRun {
 protected:
  explicit SingleRun(const QuantizeOptions& options);

  /// The model as it was given; by then its output may be written, and the run has its directory.
  onnx::Model open();
  /// Makes `model` ready to be quantized. Its notes are not yet among the result's.
  void prepare(onnx::Model model);
  /// Where the user asked for the prepared model.
  void write_prepared() const;
  /// The result, proved. `excuse` and `check`: see Prover.
  void write(onnx::Model& model, std::string excuse = {}, std::function<void(const std::filesystem::path&)> check = {});
  /// Writes the report and the trace that were asked for.
  QuantizeResult finish();

  void append(const std::vector<std::string>& notes);

  const QuantizeOptions& options_;
  RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  exec::Runtime runtime_;
  std::optional<RunDirectory> work_;
  Prepared prepared_;
  QuantizeResult result_;
  RunReport report_;
};

}  // namespace detent::run
