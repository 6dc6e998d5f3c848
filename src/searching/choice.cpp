#include "searching/choice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "speed/choice.h"

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

Costs costs_of(const Problem& problem, const Choice& choice) {
  Costs sum;
  for (std::size_t l = 0; l < problem.layers.size(); ++l) sum += problem.layers[l][choice[l]];
  for (const auto& border : problem.borders) sum.seconds += border.seconds[choice[border.from]][choice[border.to]];
  return sum;
}

namespace {

// A function of the forms of some layers, in the order of `layers`, the last one's form counting fastest.
struct Table {
  std::vector<std::size_t> layers;
  std::vector<double> values;
};

// What an eliminated layer does, by the forms of those around it.
struct Answer {
  std::size_t layer = 0;
  std::vector<std::size_t> around;
  std::vector<std::size_t> forms;
};

class Elimination {
 public:
  Elimination(const Problem& problem, const Prices& prices, std::size_t most_terms)
      : problem_(problem),
        most_terms_(static_cast<double>(most_terms)),
        around_(problem.layers.size()),
        tables_of_(problem.layers.size()) {
    for (std::size_t l = 0; l < problem.layers.size(); ++l) {
      Table table{{l}, {}};
      for (const auto& form : problem.layers[l]) table.values.push_back(price_of(form, prices));
      add(std::move(table));
    }
    for (const auto& border : problem.borders) {
      if (border.from == border.to) continue;
      Table table{{border.from, border.to}, {}};
      for (const auto& row : border.seconds) {
        for (const double seconds : row) table.values.push_back(prices.seconds * seconds);
      }
      add(std::move(table));
    }
    for (std::size_t l = 0; l < problem.layers.size(); ++l) queue_.emplace(terms(l), l);
  }

  std::optional<Choice> run() {
    while (!queue_.empty()) {
      const auto [count, layer] = *queue_.begin();  // the smallest table first
      if (count > most_terms_) return std::nullopt;
      eliminate_layer(layer);
    }
    Choice choice(problem_.layers.size());
    for (auto answer = answers_.rbegin(); answer != answers_.rend(); ++answer)
      choice[answer->layer] = answer->forms[position(answer->around, choice)];
    return choice;
  }

 private:
  std::size_t forms(std::size_t layer) const { return problem_.layers[layer].size(); }

  std::size_t position(const std::vector<std::size_t>& layers, const Choice& choice) const {
    std::size_t at = 0;
    for (const auto layer : layers) at = at * forms(layer) + choice[layer];
    return at;
  }

  double terms(std::size_t layer) const {
    double count = static_cast<double>(forms(layer));
    for (const auto other : around_[layer]) count *= static_cast<double>(forms(other));
    return count;
  }

  void add(Table table) {
    for (const auto layer : table.layers) {
      tables_of_[layer].push_back(tables_.size());
      for (const auto other : table.layers) {
        if (other != layer) around_[layer].insert(other);
      }
    }
    tables_.push_back(std::move(table));
  }

  void eliminate_layer(std::size_t layer) {
    const std::vector<std::size_t> others(around_[layer].begin(), around_[layer].end());
    queue_.erase({terms(layer), layer});
    for (const auto other : others) queue_.erase({terms(other), other});
    std::vector<Table> read;
    for (const auto t : tables_of_[layer]) {
      if (tables_[t].layers.empty()) continue;  // of a layer that went before
      read.push_back(std::exchange(tables_[t], {}));
    }
    for (const auto other : others) around_[other].erase(layer);
    Table made{others, {}};
    Answer answer{layer, others, {}};
    Choice choice(problem_.layers.size());
    do {
      double least = std::numeric_limits<double>::infinity();
      std::size_t best = 0;
      for (choice[layer] = 0; choice[layer] < forms(layer); ++choice[layer]) {
        double sum = 0;
        for (const auto& table : read) sum += table.values[position(table.layers, choice)];
        if (sum < least) best = choice[layer];
        least = std::min(least, sum);
      }
      made.values.push_back(least);
      answer.forms.push_back(best);
    } while (advance(others, choice));
    if (!others.empty()) add(std::move(made));
    for (const auto other : others) queue_.emplace(terms(other), other);
    answers_.push_back(std::move(answer));
  }

  // To the next forms of these layers; false: there is none.
  bool advance(const std::vector<std::size_t>& layers, Choice& choice) const {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      if (++choice[*layer] < forms(*layer)) return true;
      choice[*layer] = 0;
    }
    return false;
  }

  const Problem& problem_;
  double most_terms_;
  std::vector<Table> tables_;
  std::vector<std::set<std::size_t>> around_;        // layers that share a table
  std::vector<std::vector<std::size_t>> tables_of_;  // by layer
  std::set<std::pair<double, std::size_t>> queue_;   // terms of a layer, and it
  std::vector<Answer> answers_;
};

}  // namespace

std::optional<Choice> eliminate(const Problem& problem, const Prices& prices, std::size_t most_terms) {
  return Elimination(problem, prices, most_terms).run();
}

}  // namespace detent::searching
