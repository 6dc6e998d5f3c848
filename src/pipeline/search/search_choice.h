// Which of the measured points are on the front, and which the user gets.
#pragma once

#include <optional>
#include <vector>

#include "detent/search.h"
#include "pipeline/search/search_machines.h"

namespace detent::pipeline {

void mark_front(std::vector<SearchPoint>& points);

/// Sets SearchPoint::chosen. Throws resource, with the nearest point, where limits are given that none meets.
void choose_points(const SearchOptions& options, std::vector<SearchPoint>& points);

/// Whether a machine that takes so many seconds for a request can serve the point within the limits.
bool serves(const SearchOptions& options, const SearchPoint& point, double seconds);

/// That no machine does, with what is nearest: `seconds` of each point, by machine.
Error no_machine_error(const SearchOptions& options, const std::vector<SearchPoint>& points,
                       const std::vector<Machine>& machines,
                       const std::vector<std::vector<std::optional<double>>>& seconds);

}  // namespace detent::pipeline
