#include "run/sweep_setup.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "base/text.h"
#include "graph/decisions.h"
#include "graph/execution.h"
#include "planning/memory.h"
#include "run/samples/sample_feed.h"
#include "run/samples/samples.h"
#include "shim/shared_work.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSpool = "spool";

bool all_static(const graph::ValueTypes& types) {
  return std::all_of(types.begin(), types.end(), [](const auto& entry) {
    const auto& shape = entry.second.shape;
    return shape && std::all_of(shape->begin(), shape->end(), [](const auto& dim) { return dim.is_static(); });
  });
}

bool asks_for_cuts(const Resources& resources) {
  return resources.memory_budget || resources.segments > 1 || resources.memory_level != MemoryLevel::budget;
}

std::uint64_t count_samples(data::SampleSource& source) {
  source.rewind();
  std::uint64_t count = 0;
  while (source.next()) ++count;
  source.rewind();
  return count;
}

// One sample has to run in one piece before the memory is known that it takes: so a budget for less is refused, before
// that run where even what is known already takes more. How many shapes were measured.
std::size_t measure_within(const Context& context, const onnx::Model& model, const std::vector<std::string>& observed,
                           data::SampleSource& source, planning::Circumstances circumstances,
                           const planning::Budget& budget, graph::ValueTypes& types) {
  const auto values = values_of_unknown_shape(model, types);
  circumstances.workers = 1;
  const auto check = [&](const char* at_least) {
    const planning::Budget ample{std::numeric_limits<std::uint64_t>::max() / 4, budget.disk};
    const auto needed = planning::plan_sweep(model, types, observed, circumstances, 1, ample).memory;
    if (needed <= budget.memory) return;
    throw resource_error(
        fmt::format("model '{}': {} shapes depend on values, and are known once a sample has run in one piece; {} of "
                    "memory do not suffice for that",
                    model.path.string(), values.size(), format_size(budget.memory)),
        fmt::format("the smallest --memory-budget that works is {}MiB{}", needed / planning::kMiB + 1, at_least));
  };
  set_empty(types, values);
  check(" or more");
  measure_shapes(context, model, source, values, types);
  check("");
  return values.size();
}

std::vector<std::string> sweep_notes(const SweepSetup& setup) {
  std::vector<std::string> notes;
  if (setup.measured > 0)
    notes.push_back(
        fmt::format("{} shapes depend on values: memory was planned with those of the first sample, and larger "
                    "ones take more",
                    setup.measured));
  if (!setup.spool) return notes;
  const auto use = setup.spool->use();
  std::string line =
      fmt::format("the model ran in {} segments; at most {} in memory and {} on disk were spooled between them",
                  setup.cuts.size() + 1, format_size(use.memory_peak), format_size(use.disk_peak));
  if (use.bytes_written > 0)
    line += fmt::format(" ({} written, {} read)", format_size(use.bytes_written), format_size(use.bytes_read));
  notes.push_back(std::move(line));
  if (!use.access_reason.empty()) notes.push_back("disk access: " + use.access_reason);
  if (setup.spool->damaged() > 0)
    notes.push_back(fmt::format("computed again: {}", count_with_noun(setup.spool->damaged(), "damaged record")));
  return notes;
}

}  // namespace

graph::ValueTypes static_types(const graph::ValueTypes& types, const onnx::Model& model, const exec::Runtime& runtime,
                               data::SampleSource& source) {
  if (all_static(types)) return types;
  return exec::infer_value_types(runtime, model, first_sample(source, input_specs(model)).shapes);
}

std::unique_ptr<store::Spool> make_spool(const Context& context, const planning::SpoolMemory& memory) {
  static constexpr std::pair<SpoolAccess, store::DiskAccess> kAccesses[] = {
      {SpoolAccess::automatic, store::DiskAccess::automatic},
      {SpoolAccess::buffered, store::DiskAccess::buffered},
      {SpoolAccess::direct, store::DiskAccess::direct},
      {SpoolAccess::uring, store::DiskAccess::uring}};
  const Resources& resources = context.resources;
  const auto budget = budget_of(resources, context.directory);
  store::SpoolOptions options;
  options.directory = context.directory / kSpool;
  options.residency = budget.all_in_memory ? store::Residency::memory
                      : budget.all_on_disk ? store::Residency::disk
                                           : store::Residency::memory_then_disk;
  options.memory_bytes = memory.records;
  options.buffer_bytes = memory.buffers;
  options.disk_bytes = budget.disk;
  for (const auto& [ours, theirs] : kAccesses) {
    if (ours == resources.spool_access) options.access = theirs;
  }
  if (::mkdir(options.directory.c_str(), S_IRWXU) != 0 && errno != EEXIST)  // of the run that is resumed
    throw failed_call(errno, fmt::format("cannot create '{}'", options.directory.string()), ErrorKind::usage);
  return std::make_unique<store::Spool>(std::move(options));
}

std::unique_ptr<store::Spool> make_spool(const Context& context, const std::optional<planning::SweepPlan>& plan) {
  return make_spool(context, plan ? plan->spool : planning::SpoolMemory{0, store::SpoolOptions().buffer_bytes});
}

planning::Budget budget_of(const Resources& resources, const fs::path& work_dir) {
  constexpr double kShareOfMemory = 0.8;
  constexpr double kShareOfDisk = 0.9;
  planning::Budget budget;
  budget.memory = resources.memory_budget.value_or(
      static_cast<std::uint64_t>(kShareOfMemory * static_cast<double>(planning::available_memory())));
  budget.disk = resources.disk_budget.value_or(
      static_cast<std::uint64_t>(kShareOfDisk * static_cast<double>(planning::free_disk(work_dir))));
  budget.all_in_memory = resources.memory_level == MemoryLevel::memory;
  budget.all_on_disk = resources.memory_level == MemoryLevel::disk;
  budget.segments = resources.segments;
  return budget;
}

FirstSample first_sample(data::SampleSource& source, const std::vector<data::InputSpec>& specs) {
  FirstSample first;
  source.rewind();
  if (const auto sample = source.next()) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      first.shapes[specs[i].name] = sample->inputs[i].shape;
      first.bytes += sample->inputs[i].bytes.size();
    }
  }
  source.rewind();
  return first;
}

SweepSetup set_up_sweep(const Context& context, const Prepared& prepared, const quantization::Placement& placement,
                        data::SampleSource& source, planning::Circumstances circumstances,
                        const CalibrationProgress* earlier) {
  SweepSetup setup;
  const auto& model = prepared.model;
  const auto first = first_sample(source, input_specs(model));
  circumstances.sample_bytes = first.bytes;
  auto types =
      all_static(prepared.types) ? prepared.types : exec::infer_value_types(context.runtime, model, first.shapes);
  const auto observed = placement.to_observe();
  const auto budget = budget_of(context.resources, context.directory);
  const graph::Index index(model);
  const bool known = graph::liveness(model, index, types).has_value();
  if (!known && asks_for_cuts(context.resources))
    setup.measured = measure_within(context, model, observed, source, circumstances, budget, types);
  if (known || asks_for_cuts(context.resources)) {
    setup.plan = planning::plan_sweep(model, types, observed, circumstances,
                                      std::max<std::size_t>(source.sample_count(), 1), budget);
    // Files may hold several samples; the exact count only matters where samples are spooled.
    if (!setup.plan->cuts.empty())
      setup.plan = planning::plan_sweep(model, types, observed, circumstances, count_samples(source), budget);
    setup.cuts = setup.plan->cuts;
  }
  if (earlier != nullptr) setup.cuts = earlier->cuts;
  if (setup.cuts.empty()) return setup;
  setup.spool = make_spool(context, setup.plan);
  return setup;
}

Collected collect_within(const Context& context, const RunDirectory& directory, const Prepared& prepared,
                         const quantization::Placement& placement, data::SampleSource& source, CollectOptions options) {
  // Samples that draw random numbers draw them in their order.
  if (graph::draws_numbers(prepared.model)) options.workers = 1;
  Checkpoints checkpoints(directory.path(), context.resources.checkpoint_seconds, shim::size_of(options.ranks));
  std::optional<CalibrationProgress> earlier;
  if (directory.resumed()) earlier = checkpoints.load();
  if (!earlier) paths::remove(directory.path() / kSpool);  // records without progress are of no use, and take disk
  const planning::Circumstances circumstances{placement.to_observe().size(), options.histograms,
                                              thread_count(context.threads), static_cast<std::size_t>(options.workers),
                                              0};
  const auto setup = set_up_sweep(context, prepared, placement, source, circumstances, earlier ? &*earlier : nullptr);
  options.cuts = setup.cuts;
  options.spool = setup.spool.get();
  options.checkpoints = &checkpoints;
  Collected collected;
  if (earlier) {
    options.earlier = &*earlier;
    const auto segments = setup.cuts.size() + 1;
    collected.notes.push_back(earlier->segment >= segments
                                  ? "resumed: all samples were observed before"
                                  : fmt::format("resumed in segment {} of {} after {}", earlier->segment + 1, segments,
                                                count_with_noun(earlier->done, "sample")));
  }
  OddInputs odd(prepared.model);
  options.odd = &odd;
  collected.statistics = collect(context, prepared, placement, source, options);
  if (options.ranks != nullptr) merge_statistics(*options.ranks, collected.statistics, context.stop);
  for (auto& note : suspicions(prepared.model, collected.statistics)) collected.notes.push_back(std::move(note));
  for (auto& note : odd.notes()) collected.notes.push_back(std::move(note));
  for (auto& note : sweep_notes(setup)) collected.notes.push_back(std::move(note));
  return collected;
}

}  // namespace detent::run
