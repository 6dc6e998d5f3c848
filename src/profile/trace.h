// A profile as a picture: the file that Perfetto (ui.perfetto.dev) and chrome://tracing open.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profile/report.h"
#include "profile/timeline.h"

namespace detent::profile {

/// Writes stages and spans as bars, each kind and lane on tracks of its own, and memory, disk, bus and storage rates as
/// curves. Bars that overlap without one holding the other, as those of several workers do, get further tracks. Any
/// bytes are good as names and lanes. Times that are negative or not finite count as 0, longer ones than 1e9 seconds as
/// that.
///
/// The file appears whole or not at all. Throws as check_trace_path does, and resource when the disk is full.
void write_trace(const std::filesystem::path& path, const std::vector<StageTime>& stages,
                 const std::vector<TimelinePoint>& timeline, const std::vector<TraceSpan>& spans);

/// Throws usage when `path` holds something that is neither empty nor a trace: a mistyped path must not cost a model.
/// For the start of a run, so that it does not fail at its end.
void check_trace_path(const std::filesystem::path& path);

}  // namespace detent::profile
