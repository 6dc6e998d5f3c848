// What a search writes: the table of its points, a picture of them, and the chosen models.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "detent/search.h"
#include "pipeline/search/search_points.h"

namespace detent::pipeline {

/// Throws usage where something is there already.
void check_search_output(const SearchOptions& options);

/// The command line that makes a point alone, byte for byte; of the float model, empty.
std::string command_of(const SearchOptions& options, const SearchPoint& point);

nlohmann::json to_json(const SearchResult& result);

/// Writes front.json, front.html, a file of --config for each mixed point, and the chosen models, and says in `result`
/// where these are. The folder appears whole or not at all.
void write_search(const SearchOptions& options, const std::vector<MadePoint>& made, SearchResult& result);

}  // namespace detent::pipeline
