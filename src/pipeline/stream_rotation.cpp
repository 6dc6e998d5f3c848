#include "pipeline/stream_rotation.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "data/part.h"
#include "graph/rotate_stream.h"
#include "pipeline/block_streams.h"
#include "pipeline/deployed.h"
#include "quantization/emit/blocks.h"

namespace detent::pipeline {

std::vector<std::string> StreamRotation::rotate(onnx::Model& model,
                                                const std::optional<Transformer>& transformer) const {
  if (!transformer || !transformer->embedding)
    throw bad_input(fmt::format("model '{}' is no transformer with a table of token ids, whose residual stream could "
                                "be rotated",
                                options_.model.string()),
                    "leave out --rotation");
  const graph::RotationPlace place{directory_.path(), threads_};
  auto notes = graph::rotate_stream(model, transformer->embedding->node, place);
  graph::rotate_heads(model, place);
  return notes;
}

StreamRotation::Choice StreamRotation::choose(const onnx::Model& model, const std::optional<Transformer>& transformer,
                                              data::SampleSource& samples, const std::filesystem::path& directory,
                                              const Solve& solve, const exec::Runtime& runtime) const {
  constexpr std::size_t kHeldBack = 8;  // one in so many
  auto turned = model;
  std::vector<std::string> notes;
  try {
    notes = rotate(turned, transformer);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    return {solve(model, samples, directory), std::nullopt, {fmt::format("not rotated: {}", e.what())}};
  }
  data::Part fitted(samples, kHeldBack, data::Part::Kind::others);
  data::Part judging(samples, kHeldBack, data::Part::Kind::last);
  const auto attempt = [&](const onnx::Model& one, const char* name) {
    const auto own = directory / name;
    std::filesystem::create_directory(own);
    auto draft = solve(one, fitted, own);
    const double error = error_of(draft, own, judging, runtime);
    return std::pair(std::move(draft), error);
  };
  auto [rotated, error_after] = attempt(turned, "rotated");
  auto [plain, error_before] = attempt(model, "plain");
  const RotatedStream told{error_before, error_after, error_after < error_before};
  if (!told.kept) return {std::move(plain), told, {}};
  return {std::move(rotated), told, std::move(notes)};
}

double StreamRotation::error_of(const BlocksDraft& draft, const std::filesystem::path& directory,
                                data::SampleSource& samples, const exec::Runtime& runtime) const {
  auto placement = draft.placement;
  find_common_scales(draft.model, placement);
  auto emitted = quantization::emit_blocks(draft.model, placement,
                                           block_streams(draft.model, placement, draft.solved, options_, threads_),
                                           options_.weights_only);
  const auto found = fidelity_of(std::move(emitted), directory / "candidate.onnx", options_, runtime, samples);
  return std::pow(10, -found.sqnr_db / 10);
}

}  // namespace detent::pipeline
