// What each product of a model costs in each format: the problem that a search solves.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/node_formats.h"
#include "pipeline/run.h"
#include "searching/problem.h"

namespace detent::pipeline {

/// A layer of the problem.
struct SearchLayer {
  std::string node;  // Node::id() of a product or table; empty: an operator that carries integers
  std::vector<config::NodeFormat> formats;  // those of the problem's layer, in their order
};

struct Candidates {
  std::vector<SearchLayer> layers;
  searching::Problem problem;
  searching::Costs whole;                     // the float model: seconds of what is timed, bytes of its file
  std::vector<searching::Problem> elsewhere;  // the same with the times of other machines
  std::uint64_t samples = 0;
  std::uint64_t inferences = 0;  // about
  std::vector<std::string> notes;

  std::size_t count() const;
  /// As QuantizeOptions::node_formats; empty: all stay in float.
  std::vector<std::string> node_formats(const searching::Choice& choice) const;
  /// Of each layer the format, or float where it cannot have it.
  searching::Choice all_in(config::NodeFormat format) const;
};

/// Of a run that has measured the error of each value rounded alone, as remedies do. Weights in blocks have the error
/// of their values beside that of 8 bits, in proportion. Times are those of the kernel table, and elsewhere of
/// `tables`, which have those of all candidates: throws bad_input for one that does not.
Candidates find_candidates(Run& run, const std::vector<config::NodeFormat>& formats,
                           const std::vector<std::filesystem::path>& tables = {});

}  // namespace detent::pipeline
