#include "run/comparison/next_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "data/floats.h"
#include "data/formats/decoder.h"

namespace detent::run {
namespace {

constexpr std::string_view kMask = "attention_mask";
constexpr std::string_view kLogits = "logits";

std::vector<std::int64_t> integers(const data::Array& array) {
  const auto read = [&]<class T>(T) {
    std::vector<std::int64_t> values;
    values.reserve(array.bytes.size() / sizeof(T));
    for (std::size_t at = 0; at + sizeof(T) <= array.bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, array.bytes.data() + at, sizeof(T));
      values.push_back(static_cast<std::int64_t>(value));
    }
    return values;
  };
  if (array.type == onnx::DataType::int64) return read(std::int64_t{});
  if (array.type == onnx::DataType::int32) return read(std::int32_t{});
  throw bad_input("a decoder's token ids and mask must be int64 or int32");
}

// log(sum(exp(x))).
double log_sum(std::span<const float> x) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float value : x) sum += std::exp(value - top);
  return top + std::log(sum);
}

// The positions of each row that are text: all, or those that the last columns of the mask say.
std::vector<bool> text_positions(const data::Array& ids, const data::Array* mask) {
  const auto rows = static_cast<std::size_t>(ids.shape[0]), length = static_cast<std::size_t>(ids.shape[1]);
  std::vector<bool> text(rows * length, true);
  if (mask == nullptr || mask->shape.size() != 2 || mask->shape[1] < ids.shape[1]) return text;
  const auto marks = integers(*mask);
  const auto columns = static_cast<std::size_t>(mask->shape[1]);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t at = 0; at < length; ++at)
      text[row * length + at] = marks[row * columns + columns - length + at] != 0;
  }
  return text;
}

}  // namespace

std::optional<TokenPlaces> find_tokens(const std::vector<data::InputSpec>& inputs,
                                       const std::vector<std::string>& outputs) {
  const auto logits = std::find(outputs.begin(), outputs.end(), kLogits);
  if (!data::is_decoder(inputs) || logits == outputs.end()) return std::nullopt;
  const auto place = [&](std::string_view name) {
    return static_cast<std::size_t>(
        std::find_if(inputs.begin(), inputs.end(), [&](const auto& input) { return input.name == name; }) -
        inputs.begin());
  };
  TokenPlaces places{place(data::kTokenIds), std::nullopt, static_cast<std::size_t>(logits - outputs.begin())};
  if (place(kMask) < inputs.size()) places.mask = place(kMask);
  return places;
}

void NextTokenSums::add(const data::Array& ids, const data::Array* mask, const data::Array& float_logits,
                        const data::Array& quantized_logits) {
  const auto& shape = float_logits.shape;
  if (shape != quantized_logits.shape) throw bad_input("the models' logits differ in shape");
  if (ids.shape.size() != 2 || shape.size() != 3 || shape[0] != ids.shape[0] || shape[1] != ids.shape[1]) return;
  const auto rows = static_cast<std::size_t>(shape[0]), length = static_cast<std::size_t>(shape[1]);
  const auto vocabulary = static_cast<std::size_t>(shape[2]);
  const auto tokens = integers(ids);
  const auto text = text_positions(ids, mask);
  const auto x = data::to_floats(float_logits), y = data::to_floats(quantized_logits);
  for (std::size_t at = 0; at + 1 < rows * length; ++at) {
    if ((at + 1) % length == 0 || !text[at] || !text[at + 1]) continue;
    const auto next = static_cast<std::size_t>(tokens[at + 1]);
    if (next >= vocabulary) {
      throw bad_input(fmt::format("token {} is not in the vocabulary of {}", tokens[at + 1], vocabulary),
                      "use token ids of the model's own tokenizer");
    }
    add_position(std::span(x).subspan(at * vocabulary, vocabulary), std::span(y).subspan(at * vocabulary, vocabulary),
                 next);
  }
}

void NextTokenSums::add_position(std::span<const float> x, std::span<const float> y, std::size_t next) {
  const double x_sum = log_sum(x), y_sum = log_sum(y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double told = x[i] - x_sum, share = std::exp(told);
    if (share > 0) divergence_ += share * (told - (y[i] - y_sum));
  }
  float_loss_ += x_sum - x[next];
  quantized_loss_ += y_sum - y[next];
  agreeing_ += std::max_element(x.begin(), x.end()) - x.begin() == std::max_element(y.begin(), y.end()) - y.begin();
  ++positions_;
}

std::optional<NextTokens> NextTokenSums::result() const {
  if (positions_ == 0) return std::nullopt;
  const auto count = static_cast<double>(positions_);
  return NextTokens{positions_, std::exp(float_loss_ / count), std::exp(quantized_loss_ / count),
                    static_cast<double>(agreeing_) / count, divergence_ / count};
}

}  // namespace detent::run
