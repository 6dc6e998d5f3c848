// Which of the measured points are on the front, and which the user gets.
#pragma once

#include <vector>

#include "detent/search.h"

namespace detent::pipeline {

void mark_front(std::vector<SearchPoint>& points);

/// Sets SearchPoint::chosen. Throws resource, with the nearest point, where limits are given that none meets.
void choose_points(const SearchOptions& options, std::vector<SearchPoint>& points);

}  // namespace detent::pipeline
