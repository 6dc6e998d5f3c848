// How well a decoder and its quantized form tell the next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/compare.h"

namespace detent::run {

/// Where a decoder's token ids, mask and logits are among its inputs and outputs.
struct TokenPlaces {
  std::size_t ids = 0;
  std::optional<std::size_t> mask;
  std::size_t logits = 0;
};

/// nullopt for models other than decoders with a cache, or without an output 'logits'.
std::optional<TokenPlaces> find_tokens(const std::vector<data::InputSpec>& inputs,
                                       const std::vector<std::string>& outputs);

/// Running sums over all positions that a next token is known for: in natural logarithms, of the distributions that the
/// softmax makes of the logits.
class NextTokenSums {
 public:
  /// ids: [row, position]; logits: [row, position, vocabulary] or, of decoders that give only the last position, any
  /// other shape, which adds nothing. mask: [row, past + position], 0 where there is padding. Throws bad_input when an
  /// id is not in the vocabulary, or the models' logits differ in shape.
  void add(const data::Array& ids, const data::Array* mask, const data::Array& float_logits,
           const data::Array& quantized_logits);
  /// nullopt when nothing was added.
  std::optional<NextTokens> result() const;

 private:
  void add_position(std::span<const float> x, std::span<const float> y, std::size_t next);

  std::uint64_t positions_ = 0;
  std::uint64_t agreeing_ = 0;
  double float_loss_ = 0;
  double quantized_loss_ = 0;
  double divergence_ = 0;
};

}  // namespace detent::run
