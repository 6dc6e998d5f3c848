// Products that compute in float, as this machine runs them faster so or since their rounding does most harm, keep
// their weights as integers of 8 bits that become floats when the model is loaded, where the results stay near enough.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "quantization/emit/stored_weights.h"
#include "remedies/remedies.h"
#include "remedies/remedy.h"
#include "run/model/finish_integers.h"

namespace detent::remedies {
namespace {

constexpr double kNear = 1e-3;  // 30 dB: near enough, whatever the other roundings do

class StoredProducts : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto& config = evaluator.options().config;
    auto products = quantization::products_to_store(draft.prepared.model, config);
    std::erase_if(products, [&](const auto& id) { return draft.prepared.keeps_in_float(id); });
    products_ = quantization::products_in_float(draft.emitted->model, products);
    return !products_.empty();
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    if (is_near_enough(draft, evaluator)) return true;
    // What falls back does so for what rounding it does, mostly its weights'.
    const auto all = products_.size();
    for (const auto n : draft.fallbacks) products_.erase(draft.prepared.model.graph.nodes[n].id());
    return !products_.empty() && products_.size() < all && is_near_enough(draft, evaluator);
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
    const auto found = evaluator.deployed(stored.emitted->model);
    sqnr_db_ = found.sqnr_db;
    cosine_ = found.cosine;
    return accuracy.target || std::pow(10, -sqnr_db_ / 10) <= allowed(draft, evaluator);
  }

  // Together they may do as much harm as all other roundings.
  static double allowed(const Draft& draft, Evaluator& evaluator) {
    if (draft.assignment.placement.marks.empty()) return kNear;
    return std::max(kNear, 2 * worst_error_of(evaluator.judged(draft)));
  }

  std::set<std::string> products_;  // by Node::id()
  double sqnr_db_ = 0, cosine_ = 0;
};

}  // namespace

std::unique_ptr<Remedy> stored_products() { return std::make_unique<StoredProducts>(); }

}  // namespace detent::remedies
