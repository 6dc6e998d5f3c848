#include "searching/choice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "searching/elimination.h"
#include "speed/min_cut.h"

namespace detent::searching {
namespace {

using speed::MinCut;

constexpr double kLargest = 1e15;  // what the dearest form costs as a whole number

// The whole numbers that a cut works with.
class Scale {
 public:
  Scale(const Problem& problem, const Prices& prices) {
    double largest = 0;
    for (const auto& forms : problem.layers) {
      for (const auto& form : forms) largest = std::max(largest, price_of(form, prices));
    }
    for (const auto& border : problem.borders) {
      for (const auto& row : border.seconds) {
        for (const double seconds : row) largest = std::max(largest, prices.seconds * seconds);
      }
    }
    factor_ = largest > 0 ? kLargest / largest / static_cast<double>(problem.layers.size() + 1) : 1;
  }
  std::int64_t of(double cost) const { return std::llround(cost * factor_); }

 private:
  double factor_;
};

class Expansion {
 public:
  Expansion(const Problem& problem, const Prices& prices)
      : problem_(problem), prices_(prices), scale_(problem, prices) {
    for (const auto& forms : problem.layers) most_forms_ = std::max(most_forms_, forms.size());
  }

  Choice run() {
    Choice best = cheapest_alone();
    for (std::size_t form = 0; form < most_forms_; ++form) {
      auto same = as_far_as_possible(form, best);
      if (price(same) < price(best)) best = std::move(same);
    }
    for (bool better = true; better;) {
      better = false;
      for (std::size_t form = 0; form < most_forms_; ++form)
        better = move(as_far_as_possible(form, best), best) || better;
      better = move(cheapest_alone(), best) || better;
    }
    return best;
  }

 private:
  double price(const Choice& choice) const { return price_of(costs_of(problem_, choice), prices_); }

  Choice cheapest_alone() const {
    Choice choice;
    for (const auto& forms : problem_.layers) {
      const auto least = std::min_element(forms.begin(), forms.end(), [&](const auto& a, const auto& b) {
        return price_of(a, prices_) < price_of(b, prices_);
      });
      choice.push_back(static_cast<std::size_t>(least - forms.begin()));
    }
    return choice;
  }

  Choice as_far_as_possible(std::size_t form, Choice others) const {
    for (std::size_t l = 0; l < others.size(); ++l) {
      if (form < problem_.layers[l].size()) others[l] = form;
    }
    return others;
  }

  // Each layer keeps its form or takes the proposed one, whichever is cheapest for all together. Where changing one of
  // two layers is cheaper than both or none, which no cut can say, it counts as no cheaper.
  bool move(const Choice& proposed, Choice& current) const {
    const std::size_t layers = current.size(), keeps = layers, takes = layers + 1;
    MinCut cut(layers + 2);
    std::vector<std::int64_t> extra(layers);  // of taking the proposed form
    for (std::size_t l = 0; l < layers; ++l)
      extra[l] = scale_.of(price_of(problem_.layers[l][proposed[l]], prices_)) -
                 scale_.of(price_of(problem_.layers[l][current[l]], prices_));
    for (const auto& border : problem_.borders) {
      const auto cost = [&](const Choice& from, const Choice& to) {
        return scale_.of(prices_.seconds * border.seconds[from[border.from]][to[border.to]]);
      };
      const auto none = cost(current, current), both = cost(proposed, proposed);
      auto first = cost(proposed, current), second = cost(current, proposed);
      if (const auto lack = none + both - first - second; lack > 0) {
        first += lack / 2;
        second += lack - lack / 2;
      }
      extra[border.from] += first - none;
      extra[border.to] += both - first;
      cut.add(border.from, border.to, first + second - none - both);
    }
    for (std::size_t l = 0; l < layers; ++l) {
      // On the source's side a layer keeps its form.
      cut.add(l, takes, std::max<std::int64_t>(-extra[l], 0));
      cut.add(keeps, l, std::max<std::int64_t>(extra[l], 0));
    }
    const auto side = cut.source_side(keeps, takes);
    auto moved = current;
    for (std::size_t l = 0; l < layers; ++l) {
      if (!side[l]) moved[l] = proposed[l];
    }
    if (price(moved) >= price(current)) return false;
    current = std::move(moved);
    return true;
  }

  const Problem& problem_;
  const Prices& prices_;
  Scale scale_;
  std::size_t most_forms_ = 0;
};

}  // namespace

Choice expand(const Problem& problem, const Prices& prices) { return Expansion(problem, prices).run(); }

Choice cheapest_choice(const Problem& problem, const Prices& prices, std::size_t most_terms) {
  if (auto found = eliminate(problem, prices, most_terms)) return std::move(*found);
  return expand(problem, prices);
}

}  // namespace detent::searching
