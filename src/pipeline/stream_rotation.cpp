#include "pipeline/stream_rotation.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/parallel.h"
#include "graph/rewrites/rotate_stream.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {

StreamRotation::StreamRotation(const QuantizeOptions& options, const run::RunDirectory* work,
                               profile::Profiler& profiler)
    : options_(options), resources_(options.resources) {
  if (work == nullptr) {
    own_.emplace(resources_.work_dir.value_or(""));
    profiler.watch_directory(own_->path());
  }
  directory_ = work != nullptr ? work->scratch() : own_->path();
}

graph::Notes StreamRotation::apply(onnx::Model& model, const std::optional<Transformer>& transformer) {
  if (!transformer || !transformer->embedding)
    throw bad_input(fmt::format("model '{}' is no transformer with a table of token ids, whose residual stream could "
                                "be rotated",
                                options_.model.string()),
                    "leave out --set rotation");
  const auto& embedding = transformer->embedding->node;
  take_disk(graph::rotated_bytes(model, embedding));
  const graph::RotationPlace place{directory_, thread_count(options_.threads)};
  auto notes = graph::rotate_stream(model, embedding, place);
  graph::rotate_heads(model, place);
  return notes;
}

void StreamRotation::take_disk(std::uint64_t bytes) {
  const auto most = run::budget_of(resources_, directory_).disk;
  if (bytes > most)
    throw resource_error(
        fmt::format("model '{}': the rotated weights need {} of disk, but only {} are allowed", options_.model.string(),
                    format_size(bytes), format_size(most)),
        fmt::format("give --disk-budget {}MiB or more, or leave out --set rotation", (bytes >> 20) + 1));
  if (resources_.disk_budget) resources_.disk_budget = most - bytes;
}

}  // namespace detent::pipeline
