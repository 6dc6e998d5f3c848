#include "remedies/workload.h"

#include <algorithm>
#include <set>
#include <string>

#include "graph/traits.h"
#include "graph/work.h"
#include "quantization/placement/integer_chains.h"
#include "run/model/finish_integers.h"

namespace detent::remedies {
namespace {

constexpr double kTable = 1;  // the cost of a table, as a share of the multiplications: dear

}  // namespace

Workload workload_of(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const quantization::Placement& placement, const std::set<std::string>& unseen,
                     bool all_operators) {
  Workload workload;
  std::size_t with_work = 0;
  double all = 0, others = 0;
  const auto& nodes = model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (unseen.contains(nodes[n].id())) continue;
    const auto work = graph::work_of(model, index, types, nodes[n]);
    const double macs = work ? static_cast<double>(work->macs) : 0;
    all += macs;
    if (!work && graph::is_product(nodes[n])) workload.is_known = false;
    if (placement.selected[n] && quantization::is_table(nodes[n], index)) {
      workload.products.push_back({n, kTable});
    } else if (placement.selected[n] && graph::is_product(nodes[n])) {
      workload.products.push_back({n, macs});
      ++with_work;
    } else if (placement.selected[n] && all_operators) {
      workload.products.push_back({n, 0});
      others += macs;
    } else {
      others += macs;
    }
  }
  for (auto& product : workload.products) {
    if (!graph::is_product(nodes[product.node])) continue;
    // Where no shape is known, all count alike.
    product.macs = all > 0 ? product.macs / all : 1 / static_cast<double>(with_work);
  }
  workload.others = all > 0 ? others / all : 0;
  return workload;
}

double recurrent_macs(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                      const QuantConfig& config) {
  const auto& model = prepared.model;
  const auto macs_at = [&](const onnx::Node& node) {
    const auto work = prepared.unseen.contains(node.id()) ? std::nullopt : graph::work_of(model, index, types, node);
    return work ? static_cast<double>(work->macs) : 0;
  };
  double all = 0, recurrent = 0;
  for (const auto& node : model.graph.nodes) all += macs_at(node);
  for (const auto n : run::recurrent_layers(prepared, config)) recurrent += macs_at(model.graph.nodes[n]);
  return all > 0 ? recurrent / all : 0;
}

double macs_of(const onnx::Model& model, const graph::Index& index, const Candidate& candidate) {
  return quantization::is_table(model.graph.nodes[candidate.node], index) ? 0 : candidate.macs;
}

double macs_of_16_bits(const onnx::Model& model, const graph::Index& index, const Workload& workload,
                       const quantization::Placement& placement) {
  std::set<std::string> wide;
  for (const auto& mark : placement.marks) {
    if (mark.wide) wide.insert(mark.value);
  }
  double sum = 0;
  for (const auto& product : workload.products) {
    const auto& inputs = model.graph.nodes[product.node].inputs();
    if (std::any_of(inputs.begin(), inputs.end(), [&](const auto& value) { return wide.contains(value); }))
      sum += macs_of(model, index, product);
  }
  return sum;
}

}  // namespace detent::remedies
