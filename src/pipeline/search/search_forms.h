// How long single operators take in each format, for a search over formats.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "config/node_formats.h"
#include "detent/progress.h"
#include "exec/session.h"
#include "speed/kernel_table.h"
#include "speed/kernels.h"

namespace detent::pipeline {

/// Times of operators, from the kernel table or measured now and added to it.
class FormatTimes {
 public:
  /// `subject.config` is that of static int8. What is given must outlive this.
  FormatTimes(const speed::TimedModel& subject, const exec::Runtime& runtime, std::filesystem::path directory,
              const std::optional<std::filesystem::path>& table, std::stop_token stop);
  FormatTimes(const FormatTimes&) = delete;
  FormatTimes& operator=(const FormatTimes&) = delete;

  /// From now on what the table lacks is an error: throws bad_input.
  void measure_none() { measures_ = false; }

  /// Of float32 and static int8, with conversions apart; null: the operator cannot be timed, and counts as free.
  const speed::KernelTimes* times(std::size_t node);
  /// Seconds of a format that brings its own conversions: a16w8, int8-dynamic, q8, q4, q2.
  double seconds(std::size_t node, config::NodeFormat format);
  /// Adds what was measured to the file. Gives back notes.
  std::vector<std::string> save();

 private:
  void check_may_measure(const std::string& kernel, std::size_t node) const;
  speed::KernelTimes measured(const std::string& kernel, std::size_t node, config::NodeFormat format);

  const speed::TimedModel& subject_;
  QuantConfig wide_;
  speed::TimedModel wide_subject_;
  const exec::Runtime& runtime_;
  std::filesystem::path directory_;
  std::optional<std::filesystem::path> file_;
  std::stop_token stop_;
  std::vector<std::string> notes_;
  speed::KernelTable table_;
  bool complete_ = true;
  bool measures_ = true;
};

}  // namespace detent::pipeline
