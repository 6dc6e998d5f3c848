#include "pipeline/search/search_singles.h"

#include <algorithm>
#include <set>
#include <utility>

#include "config/derived.h"
#include "pipeline/stages/integers.h"
#include "run/model/choose_by_speed.h"

namespace detent::pipeline {
namespace {

using config::NodeFormat;

std::vector<std::string> faster_in_float(Run& run) {
  auto options = run.options;  // of mixtures, whose formats are given
  options.config.formats_given = false;
  options.optimize_for = QuantizeOptions().optimize_for;
  if (!config::chooses_by_speed(options)) return {};
  auto prepared = run.integers->draft.prepared;
  auto placement = run.integers->draft.assignment.placement;
  return run::choose_by_speed(prepared, placement, options, *run.runtime, run.integers->source.get(), run.work->path(),
                              run.work->scratch())
      .in_float;
}

// With weights of 8 bits, where they can have them.
void leave_in_float(const Candidates& candidates, const std::vector<std::string>& nodes, searching::Choice& choice) {
  const std::set<std::string> left(nodes.begin(), nodes.end());
  const auto in_float = candidates.all_in(NodeFormat::w8);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (left.contains(candidates.layers[l].node)) choice[l] = in_float[l];
  }
}

// As quantize() writes it: what cannot have the format has weights of 8 bits as well.
void store_others(const Candidates& candidates, searching::Choice& choice) {
  const auto in_float = candidates.all_in(NodeFormat::fp32), stored = candidates.all_in(NodeFormat::w8);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (choice[l] == in_float[l]) choice[l] = stored[l];
  }
}

// Recurrent layers have integers with dynamic scales alone; those stay in float that do harm by themselves.
void add_recurrent(const Candidates& candidates, searching::Choice& choice) {
  constexpr double kHarm = 1e-2;  // noise / signal at the worst output
  const auto in_float = candidates.all_in(NodeFormat::fp32);
  const auto fixed = candidates.all_in(NodeFormat::int8), dynamic = candidates.all_in(NodeFormat::dynamic);
  for (std::size_t l = 0; l < choice.size(); ++l) {
    if (fixed[l] != in_float[l] || dynamic[l] == in_float[l]) continue;
    if (candidates.problem.layers[l][dynamic[l]].error <= kHarm) choice[l] = dynamic[l];
  }
}

}  // namespace

std::vector<SingleFormat> single_formats(Run& run, const Candidates& candidates, std::span<const NodeFormat> formats) {
  std::vector<SingleFormat> all;
  for (const auto format : formats) {
    if (format == NodeFormat::fp32) continue;
    SingleFormat single{std::string(config::name_of(format)), format, candidates.all_in(format)};
    single.runs_alone = config::is_static(format);
    if (format == NodeFormat::dynamic) store_others(candidates, single.choice);
    if (format == NodeFormat::int8 && run.integers) {
      auto for_size = single;
      for_size.name = kInt8ForSize;
      add_recurrent(candidates, for_size.choice);
      store_others(candidates, for_size.choice);
      single.choice = for_size.choice;
      leave_in_float(candidates, faster_in_float(run), single.choice);
      all.push_back(std::move(single));
      all.push_back(std::move(for_size));
    } else {
      all.push_back(std::move(single));
    }
  }
  return all;
}

}  // namespace detent::pipeline
