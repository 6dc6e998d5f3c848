// Products that compute in float, as this machine runs them faster so or since their rounding does most harm, keep
// their weights as integers of 8 bits that become floats when the model is loaded, where the results stay near enough.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "graph/traits.h"
#include "quantization/emit/stored_weights.h"
#include "remedies/remedies.h"
#include "remedies/remedy.h"
#include "run/model/finish_integers.h"
#include "run/shared_run.h"

namespace detent::remedies {
namespace {

constexpr double kNear = 1e-3;  // 30 dB: near enough, whatever the other roundings do
// Shares of the file: less is not worth any error, and not what products that fall back for their error bring anew.
constexpr double kWorthIt = 0.02, kWorthHarm = 0.1;

// What of a model's constants goes when the weights of these products are stored so.
double share_saved(const onnx::Model& model, const std::set<std::string>& products) {
  std::set<std::string> weights;
  for (const auto& node : model.graph.nodes) {
    if (products.contains(node.id())) weights.insert(node.inputs()[graph::kWeightInput]);
  }
  double all = 0, saved = 0;
  for (const auto& tensor : model.graph.initializers) {
    const auto bytes = static_cast<double>(tensor.data.size());
    all += bytes;
    if (weights.contains(tensor.name)) saved += bytes * 3 / 4;
  }
  return all > 0 ? saved / all : 0;
}

class StoredProducts : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto& config = evaluator.options().config;
    auto products = quantization::products_to_store(draft.prepared.model, config);
    std::erase_if(products, [&](const auto& id) { return draft.prepared.keeps_in_float(id); });
    const auto& emitted = draft.emitted->model;
    products_ = quantization::products_in_float(emitted, products);
    without_harm_ = products_;
    for (const auto n : draft.fallbacks) without_harm_.erase(draft.prepared.model.graph.nodes[n].id());
    const double worth = share_saved(emitted, without_harm_);
    if (share_saved(emitted, products_) - worth < kWorthHarm) products_ = without_harm_;
    if (worth < kWorthIt) without_harm_.clear();
    return share_saved(emitted, products_) >= kWorthIt;
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    if (is_near_enough(draft, evaluator)) return true;
    if (without_harm_.empty() || without_harm_.size() == products_.size()) return false;
    products_ = std::move(without_harm_);
    return is_near_enough(draft, evaluator);
  }

  void keep(Draft& draft, Evaluator&) override {
    draft.prepared.stored_products = std::move(products_);
    draft.result.sqnr_db = std::min(draft.result.sqnr_db, sqnr_db_);
    draft.result.cosine = std::min(draft.result.cosine, cosine_);
  }

 private:
  bool is_near_enough(const Draft& draft, Evaluator& evaluator) {
    auto stored = draft;
    stored.prepared.stored_products = products_;
    const auto& accuracy = evaluator.options().accuracy;
    if (accuracy.target && evaluator.score(stored, stored.emitted->model) < *accuracy.target) return false;
    run::finish_integers(stored.prepared, evaluator.options(), stored.emitted->model);
    const double allowed = this->allowed(draft, evaluator);
    evaluator.release_trial_memory();  // the float model runs as deployed
    const auto& options = evaluator.options();
    sqnr_db_ = run::measured_by_first(options.resources, options.stop, [&] {
      const auto found = evaluator.deployed(stored.emitted->model);
      cosine_ = found.cosine;
      return found.sqnr_db;
    });
    return accuracy.target || std::pow(10, -sqnr_db_ / 10) <= allowed;
  }

  // Together they may do as much harm as all other roundings; and leave the results near enough in any case, unless
  // some of them fell back for less.
  double allowed(const Draft& draft, Evaluator& evaluator) const {
    if (draft.assignment.placement.marks.empty()) return kNear;
    const double twice = 2 * worst_error_of(evaluator.judged(draft));
    const auto& nodes = draft.prepared.model.graph.nodes;
    const bool any_fell_back = std::any_of(draft.fallbacks.begin(), draft.fallbacks.end(),
                                           [&](auto n) { return products_.contains(nodes[n].id()); });
    return any_fell_back ? twice : std::max(kNear, twice);
  }

  std::set<std::string> products_, without_harm_;  // by Node::id(); without those that fall back
  double sqnr_db_ = 0;
  double cosine_ = 1;  // known to rank 0 alone
};

}  // namespace

std::unique_ptr<Remedy> stored_products() { return std::make_unique<StoredProducts>(); }

}  // namespace detent::remedies
