#include "searching/elimination.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace detent::searching {
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
