#include "run/model/unseen_bodies.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/error.h"
#include "graph/bodies.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/bodies.h"

namespace detent::run {
namespace {

struct Observed {
  bool any = false;   // values were looked for
  bool seen = false;  // and found
};

const onnx::Node& holder_of(const onnx::Model& model, int body) {
  for (const auto& node : model.graph.nodes) {
    for (const int held : node.bodies()) {
      if (held == body) return node;
    }
  }
  throw internal_error("a body belongs to no node");
}

void leave_in_float(Prepared& prepared, const std::vector<int>& body_of, std::size_t body) {
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    if (onnx::is_inside(prepared.model, body_of[n], static_cast<int>(body)))
      prepared.unseen.insert(prepared.model.graph.nodes[n].id());
  }
}

}  // namespace

std::vector<std::string> leave_scans_of_unknown_rank(Prepared& prepared) {
  const auto left = graph::state_scan_ranks(prepared.model, prepared.types);
  if (left.empty()) return {};
  std::vector<std::string> notes;
  const auto body_of = onnx::body_of_nodes(prepared.model);
  for (const int body : left) {
    leave_in_float(prepared, body_of, static_cast<std::size_t>(body));
    notes.push_back(fmt::format("{}: the rank of what its body gives is not known: the body stays in float",
                                holder_of(prepared.model, body).label()));
  }
  return notes;
}

std::vector<std::string> leave_unseen_bodies(Prepared& prepared, const quantization::Placement& placement,
                                             const quantization::ActivationRanges& ranges) {
  const auto& model = prepared.model;
  if (model.bodies.empty()) return {};
  const auto body_of = onnx::body_of_nodes(model);
  const graph::Index index(model);
  std::vector<Observed> bodies(model.bodies.size() + 1);
  for (const auto& value : placement.to_observe()) {
    const int producer = index.producer(value);
    if (producer == graph::kNone) continue;
    auto& body = bodies[static_cast<std::size_t>(body_of[static_cast<std::size_t>(producer)])];
    body.any = true;
    body.seen = body.seen || ranges.contains(value);
  }
  std::vector<std::string> notes;
  for (std::size_t b = 1; b < bodies.size(); ++b) {
    const int around = model.bodies[b - 1].around;
    if (around != 0 && bodies[static_cast<std::size_t>(around)].any && !bodies[static_cast<std::size_t>(around)].seen) {
      bodies[b] = bodies[static_cast<std::size_t>(around)];  // told with that
      continue;
    }
    if (!bodies[b].any || bodies[b].seen) continue;
    leave_in_float(prepared, body_of, b);
    std::size_t products = 0;
    for (std::size_t n = 0; n < body_of.size(); ++n) {
      if (!onnx::is_inside(model, body_of[n], static_cast<int>(b))) continue;
      if (placement.selected[n] && graph::is_product(model.graph.nodes[n])) ++products;
    }
    notes.push_back(fmt::format("{}: no sample came to its body '{}': {} in it left in float",
                                holder_of(model, static_cast<int>(b)).label(), model.bodies[b - 1].attribute,
                                count_with_noun(products, "product")));
  }
  return notes;
}

}  // namespace detent::run
