// The state of a solver, from which an interrupted layer continues.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"

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

}  // namespace detent::solve
