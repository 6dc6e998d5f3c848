// Solvers of one layer's rounding problem in its Gram form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stop_token>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "detent/config.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// Where a solver saves its state now and then, so that an interrupted layer continues to the same result.
class SolverState {
 public:
  /// The bytes stay as they are while `hold` is alive.
  struct Stored {
    std::shared_ptr<const void> hold;
    std::span<const std::byte> bytes;
  };

  virtual ~SolverState() = default;
  /// What was saved last; no bytes: nothing.
  virtual Stored load() = 0;
  /// Whether it is time to save the state again.
  virtual bool is_due() const = 0;
  virtual void save(std::span<const std::span<const std::byte>> parts) = 0;
};

/// Collects the numbers and arrays of a state. A solver lists them in one function, for this and for StateReader.
class StateParts {
 public:
  template <class T>
  void operator()(std::vector<T>& values) {
    parts_.push_back(std::as_bytes(std::span<const T>(values)));
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) { parts_.push_back(std::as_bytes(std::span<const T>(&value, 1))); }
  std::span<const std::span<const std::byte>> parts() const noexcept { return parts_; }

 private:
  std::vector<std::span<const std::byte>> parts_;
};

/// Reads them back; arrays have their size already.
class StateReader {
 public:
  explicit StateReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void operator()(std::vector<T>& values) {
    take(std::as_writable_bytes(std::span<T>(values)));
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void operator()(T& value) { take(std::as_writable_bytes(std::span<T>(&value, 1))); }

 private:
  void take(std::span<std::byte> to) {
    if (to.size() > bytes_.size()) throw internal_error("a solver's state is not that of this layer");
    if (!to.empty()) std::memcpy(to.data(), bytes_.data(), to.size());
    bytes_ = bytes_.subspan(to.size());
  }

  std::span<const std::byte> bytes_;
};

/// Calls `visit` with a StateReader, if there is a state.
template <class Visit>
void restore_state(SolverState* state, const Visit& visit) {
  if (state == nullptr) return;
  const auto stored = state->load();
  if (stored.bytes.empty()) return;
  StateReader reader(stored.bytes);
  visit(reader);
}

/// Calls `visit` with a StateParts and saves them, if it is time for it.
template <class Visit>
void save_state(SolverState* state, const Visit& visit) {
  if (state == nullptr || !state->is_due()) return;
  StateParts parts;
  visit(parts);
  state->save(parts.parts());
}

struct SolveControl {
  std::size_t threads = 1;
  /// Asked to stop, a solver throws interrupted soon after.
  std::stop_token stop;
  /// Iterations done, and the loss so far: the mean over positions of the sum over outputs of the squared error, before
  /// the regularizer. Called from the thread that solves, about ten times; may be empty.
  std::function<void(std::size_t iteration, double loss)> progress = {};
  /// Where AdaRound and AdaQuant save their state at the ends of the intervals of `progress`; may be null.
  SolverState* state = nullptr;
  /// That solve the layer together: each finds some of its rows, and all get all of them. Null: all rows are found
  /// here. Not with FinetuneConfig::early_stop, which looks at all rows.
  shim::Ranks* ranks = nullptr;
  /// The matrix of a symmetric form, or a form's inputs, where nobody reads them afterwards: GPTQ may use them up.
  /// Null: they stay.
  std::vector<float>* spent = nullptr;

  shim::Team team() const { return {ranks, stop}; }
};

/// config.coordinate_sweeps, or the method's own number where it is unset.
std::size_t coordinate_sweeps(const FinetuneConfig& config);

/// Integers by config.solver, then coordinate_sweeps() of coordinate descent, and with config.update_bias the
/// best bias for them (and integers that are best together with it). No row's error on the form's own data is above
/// that of nearest rounding. The same result for any number of threads. A bias is made only where there is one.
Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);

/// The solvers one by one: integers only, for the bias as given, or for the best one if update_bias is set.
using Integers = std::vector<std::int32_t>;

/// The expensive parts of solve(), on the CPU or on devices. The contracts are those of the functions below.
class GramMethods {
 public:
  virtual ~GramMethods() = default;
  /// By config.solver, which is not nearest.
  virtual Integers integers(const FinetuneConfig& config) = 0;
  virtual Integers better_rows(const FinetuneConfig& config, Integers first, const Integers& second) = 0;
  virtual Integers coordinate_descent(const FinetuneConfig& config, Integers start) = 0;
};
Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& config, GramMethods& methods);

/// AdaRound (Nagel et al. 2020, arXiv:2004.10568) with the gradient over all data in each step.
Integers adaround(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// AdaQuant (Hubara et al. 2020, arXiv:2006.10518): weights as continuous variables, rounded in the loss and passed
/// straight through in its gradient. Of each row the best integers seen at the ends of the intervals of `progress`.
Integers adaquant(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// GPTQ (Frantar et al. 2022, arXiv:2210.17323) from the float weights and, unless form.symmetric says that they are
/// the same, from the weights that are best for these targets; of each row the better result. Where they are the same,
/// rows for which nearest rounding is better keep it.
Integers gptq(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
              const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// Sweeps over the weights, each of which gets the integer that is best while all others stay, until none changes or
/// coordinate_sweeps() are done. No row's error grows.
Integers coordinate_descent(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                            Integers start, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control);
/// Of each row the candidate with the smaller error; the first where they are equal.
Integers better_rows(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                     const FinetuneConfig& config, Integers first, const Integers& second, const Kernels& kernels,
                     const SolveControl& control);

/// The bias with the smallest error for given integers: (target_sum − Ŵ input_sum) / positions.
std::vector<float> best_bias(const QuantizedWeights& weights, const GramForm& form,
                             std::span<const std::int32_t> integers);

/// The ends of the intervals in which iterations are done, about ten, the last being num_iterations: where progress is
/// reported and early stops are decided.
std::vector<std::size_t> interval_ends(std::size_t num_iterations);

/// Throws interrupted when it is asked for.
void check_stop(const SolveControl& control);

// Rows of a layer that several ranks find: each takes some items of a fixed list, and all get what it made of them.

/// The rank that takes an item.
inline std::size_t owner_of(std::size_t item, const shim::Team& team) { return item % team.size(); }
inline bool takes(std::size_t item, const shim::Team& team) { return owner_of(item, team) == team.rank(); }

/// parallel_for() over the items that this rank takes.
template <class Fn>
void share_for(std::size_t count, std::size_t threads, const shim::Team& team, const Fn& fn) {
  const std::size_t mine = (count + team.size() - 1 - team.rank()) / team.size();
  parallel_for(mine, threads, [&](std::size_t i) { fn(team.rank() + i * team.size()); });
}

/// That an integer takes where it travels.
inline std::size_t bytes_of_integer(std::int32_t lowest, std::int32_t highest) {
  return highest - lowest <= std::numeric_limits<std::uint8_t>::max() ? 1 : 2;
}

/// Collective: the values of the rows of each item come from the rank that takes it. `width` of a row.
template <class T>
void gather_rows(std::vector<T>& values, std::span<const RowRange> items, std::size_t width, const shim::Team& team) {
  if (team.size() == 1) return;
  std::vector<shim::Made> made;
  std::vector<int> owners;
  for (const auto& rows : items) {
    owners.push_back(static_cast<int>(owner_of(owners.size(), team)));
    made.push_back({std::as_writable_bytes(std::span(values).subspan(rows.first * width, rows.count() * width))});
  }
  shim::exchange_made(made, owners, team);
}

template <class Fn>
void for_each_of(std::span<const RowRange> items, std::size_t width, const Fn& fn) {
  for (std::size_t item = 0; item < items.size(); ++item) {
    for (std::size_t i = items[item].first * width; i < items[item].last * width; ++i) fn(item, i);
  }
}

/// The same of integers between lowest and highest: so few bytes as that takes.
template <class Packed>
void gather_packed(std::vector<std::int32_t>& integers, std::int32_t lowest, std::span<const RowRange> items,
                   std::size_t width, const shim::Team& team) {
  std::vector<Packed> packed(integers.size());
  for_each_of(items, width, [&](std::size_t item, std::size_t i) {
    if (takes(item, team)) packed[i] = static_cast<Packed>(integers[i] - lowest);
  });
  gather_rows(packed, items, width, team);
  for_each_of(items, width, [&](std::size_t item, std::size_t i) {
    if (!takes(item, team)) integers[i] = lowest + static_cast<std::int32_t>(packed[i]);
  });
}

inline void gather_integers(std::vector<std::int32_t>& integers, const QuantizedWeights& weights,
                            std::span<const RowRange> items, const shim::Team& team) {
  if (team.size() == 1) return;
  if (bytes_of_integer(weights.lowest, weights.highest) == 1) {
    gather_packed<std::uint8_t>(integers, weights.lowest, items, weights.fan_in, team);
  } else {
    gather_packed<std::uint16_t>(integers, weights.lowest, items, weights.fan_in, team);
  }
}

/// Collective: fn(rows) finds the integers of these rows, for the items that this rank takes; all get all of them.
template <class Fn>
void solve_rows(std::vector<std::int32_t>& integers, const QuantizedWeights& weights, std::span<const RowRange> items,
                const SolveControl& control, const Fn& fn) {
  share_for(items.size(), control.threads, control.team(), [&](std::size_t i) {
    check_stop(control);
    fn(items[i]);
  });
  gather_integers(integers, weights, items, control.team());
}

}  // namespace detent::solve
