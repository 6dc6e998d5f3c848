// Which of a search's measured points are on the front.
#pragma once

#include <vector>

#include "detent/search.h"

namespace detent::pipeline {

void mark_front(std::vector<SearchPoint>& points);

}  // namespace detent::pipeline
