// Changed inputs for programs without libFuzzer, and what both kinds of programs share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "fuzz/messages.h"

namespace detent::fuzz {

/// Inputs are no longer than this.
std::size_t longest(const Target& target);

/// An input of a target with Target::kinds, changed by its fields; `other` gives fields as well.
std::string changed_by_fields(const Target& target, std::string_view input, std::string_view other,
                              std::size_t max_size, std::uint32_t seed, const ByteMutator& change);

/// Inputs that are made by changing those of a corpus: always the same for the same seed and corpus.
class Changes {
 public:
  /// The corpus, which has to have an input, must outlive the object.
  Changes(const Target& target, std::span<const std::string> corpus, std::uint64_t seed)
      : target_(target), corpus_(corpus), random_(seed) {}

  std::string next();

 private:
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(random_() % count); }
  std::string_view any() { return corpus_[below(corpus_.size())]; }
  std::string changed_bytes(std::string bytes, std::size_t max_size);
  void change_once(std::string& bytes);
  void write_number(std::string& bytes);

  const Target& target_;
  std::span<const std::string> corpus_;
  std::mt19937_64 random_;
};

}  // namespace detent::fuzz
