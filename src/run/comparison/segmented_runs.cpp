#include "run/comparison/segmented_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"

namespace detent::run {
namespace {

constexpr std::uint64_t kLargeWeights = std::uint64_t{256} << 20;
constexpr std::uint64_t kDisk = std::uint64_t{1} << 30;  // is enough for what is between parts
constexpr std::uint64_t kInMemory = std::uint64_t{16} << 20;

}  // namespace

bool SegmentedRuns::suits(const onnx::Model& model, std::uint64_t disk) {
  const graph::Index index(model);
  const auto is_made = [&](const auto& output) { return index.producer(output.name) != graph::kNone; };
  return disk >= kDisk && graph::constant_bytes(model) > kLargeWeights &&
         std::all_of(model.graph.outputs.begin(), model.graph.outputs.end(), is_made);
}

SegmentedRuns::SegmentedRuns(const exec::Runtime& runtime, onnx::Model model, const exec::GuardOptions& guard,
                             const std::filesystem::path& parent,
                             std::function<std::optional<data::Sample>()> next_sample, std::uint64_t weights)
    : runtime_(runtime),
      model_(std::move(model)),
      guard_(guard),
      next_sample_(std::move(next_sample)),
      weights_(weights),
      directory_(parent),
      spool_({.directory = directory_.path(), .memory_bytes = kInMemory, .buffer_bytes = kInMemory}) {
  graph::unfold(model_);
  graph::lift_constants(model_);
}

void SegmentedRuns::run_all() {
  const auto types = exec::infer_value_types(runtime_, model_);
  const graph::Index index(model_);
  const auto cuts = graph::cuts_by_constants(model_, index, weights_, 0, static_cast<int>(model_.graph.nodes.size()));
  exec::Branch branch(runtime_, model_, types, cuts, &spool_,
                      {.session = {exec::SessionMode::lean, guard_.threads, guard_.stop},
                       .taps = {},
                       .name = "float-",
                       .inputs_of = {}});
  lanes_.push_back(spool_.open("inputs"));
  outputs_.emplace_back();
  std::vector<std::vector<std::size_t>> made(cuts.size() + 1);
  for (std::size_t i = 0; i < model_.graph.outputs.size(); ++i) {
    const auto next = std::upper_bound(cuts.begin(), cuts.end(), index.producer(model_.graph.outputs[i].name));
    made[static_cast<std::size_t>(next - cuts.begin())].push_back(i);
  }
  for (std::size_t segment = 0; segment < made.size(); ++segment) run_segment(branch, segment, made[segment]);
}

void SegmentedRuns::run_segment(exec::Branch& branch, std::size_t segment, std::vector<std::size_t> outputs) {
  const LargeBlocksApart apart;  // while weights come and go
  std::vector<std::string> names;
  for (const auto i : outputs) names.push_back(model_.graph.outputs[i].name);
  outputs_.push_back(std::move(outputs));
  lanes_.push_back(spool_.open(fmt::format("results-{}", segment)));
  auto stage = branch.load(segment, fmt::format("model '{}'", model_.path.string()), names);
  exec::NullReceiver null;
  for (std::size_t n = 0; segment == 0 || n < origins_.size(); ++n) {
    std::optional<data::Sample> sample;
    if (segment == 0 && !(sample = next_sample_())) break;
    if (sample) origins_.push_back(sample->origin);
    const auto inputs = sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>();
    spool_.put(lanes_.back(), n, stage.run(n, inputs, fmt::format("sample '{}'", origins_[n]), &null));
    if (sample) spool_.put(lanes_.front(), n, std::move(sample->inputs));
    branch.release(segment, n, true);
  }
  branch.finish(segment);
}

std::optional<FloatRun> SegmentedRuns::next() {
  if (lanes_.empty()) run_all();
  if (told_ == origins_.size()) return std::nullopt;
  FloatRun run{{origins_[told_], {}}, std::vector<data::Array>(model_.graph.outputs.size())};
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    auto record = spool_.get(lanes_[l], told_);
    if (!record) throw resource_error(fmt::format("a working file in '{}' is damaged", directory_.path().string()));
    for (std::size_t i = 0; i < outputs_[l].size(); ++i) run.results[outputs_[l][i]] = std::move((*record)[i]);
    if (l == 0) run.sample.inputs = std::move(*record);
    spool_.release(lanes_[l], told_);
  }
  ++told_;
  return run;
}

}  // namespace detent::run
