// The end of a search: machines that could serve a model, and which of the measured points are on the front.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "detent/search.h"

namespace detent::pipeline {

// Machines that could serve a model, and which of them with which model does so for the least money.

/// An entry of SearchOptions::machines.
struct Machine {
  std::string name;
  std::filesystem::path kernel_table;
  std::uint64_t threads = 1;
  std::optional<std::uint64_t> memory;  // bytes for all instances; unset: no limit
  double price = 0;                     // of an hour
};

/// Throws bad_input, with the entry, for what is no such file.
std::vector<Machine> read_machines(const std::filesystem::path& path);

/// A model on one of the machines.
struct Offered {
  std::size_t point = 0;          // of the search's points
  double seconds = 0;             // expected of a request there
  std::uint64_t peak_memory = 0;  // of an instance
};

/// Of each machine the offered model that serves most requests, cheapest request first, with how many of each machine
/// serve `requests` a second for the least. `offered` is by machine; machines without any are left out.
std::vector<ServingMachine> serve(const std::vector<Machine>& machines,
                                  const std::vector<std::vector<Offered>>& offered,
                                  const std::vector<SearchPoint>& points, double requests);

/// Bytes that a process takes which loads each of the models and runs a sample; 0 where it was not measured, of which
/// a note tells.
std::vector<std::uint64_t> peak_memories(const SearchOptions& options, const std::vector<std::filesystem::path>& models,
                                         std::stop_token stop, std::vector<std::string>& notes);

// Which of the measured points are on the front, and which the user gets.

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
