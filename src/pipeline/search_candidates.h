// What each product of a model costs in each format: the problem that a search solves.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "config/enum_names.h"
#include "pipeline/run.h"
#include "searching/choice.h"

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

/// What `--format int8 --optimize-for size` makes; "int8" is without that option.
inline constexpr const char* kInt8ForSize = "int8-for-size";

struct SingleFormat {
  std::string name;
  config::NodeFormat format;
  /// For models that run alone an estimate: what their remedies leave in float is not known before.
  searching::Choice choice;
  bool runs_alone = false;  // its ranges and weights suit no mixture: it is made by a run of its own
};

/// Each of these formats but fp32. Of int8 there are two: one with those layers in float that this machine runs faster
/// so, and one for size. `run` as for find_candidates().
std::vector<SingleFormat> single_formats(Run& run, const Candidates& candidates,
                                         std::span<const config::NodeFormat> formats);

}  // namespace detent::pipeline
