#include "run/comparison/outcome.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace detent::run {
namespace {

template <class T>
data::Array array(onnx::DataType type, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), std::as_bytes(std::span(values)), nullptr};
}

struct Text {
  std::vector<std::int64_t> ids, mask;
  std::vector<float> x, y;
  std::vector<std::int64_t> shape;  // of the ids
  std::int64_t vocabulary = 2;

  std::optional<NextTokens> judged() const {
    NextTokenSums sums;
    const std::vector<std::int64_t> logits = {shape[0], shape[1], vocabulary};
    const auto marks =
        array(onnx::DataType::int64, {shape[0], static_cast<std::int64_t>(mask.size()) / shape[0]}, mask);
    sums.add(array(onnx::DataType::int64, shape, ids), mask.empty() ? nullptr : &marks,
             array(onnx::DataType::float32, logits, x), array(onnx::DataType::float32, logits, y));
    return sums.result();
  }
};

const float kLn3 = std::log(3.0F);

// Of two tokens, the second has odds of 3 in the float model and 1/3 in the quantized one.
TEST(NextTokenSums, AreThoseOfTheDistributions) {
  const auto told = Text{{0, 1}, {}, {0, kLn3, 9, 9}, {kLn3, 0, 9, 9}, {1, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 1U);
  EXPECT_NEAR(told->float_perplexity, 4.0 / 3, 1e-6);
  EXPECT_NEAR(told->perplexity, 4.0, 1e-6);
  EXPECT_EQ(told->agreement, 0);
  EXPECT_NEAR(told->kl_divergence, 0.75 * std::log(3) - 0.25 * std::log(3), 1e-6);
}

TEST(NextTokenSums, TakeNoStepFromOneRowToTheNext) {
  const std::vector<float> same = {0, kLn3, kLn3, 0, 0, kLn3, 5, 5};
  const auto told = Text{{0, 1, 1, 0}, {}, same, same, {2, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 2U);
  EXPECT_NEAR(told->perplexity, 4 / std::sqrt(3.0), 1e-6);  // 3/4 and 1/4
  EXPECT_EQ(told->agreement, 1);
  EXPECT_EQ(told->kl_divergence, 0);
}

TEST(NextTokenSums, LeavePaddingOut) {
  const std::vector<float> x = {7, 7, 0, kLn3, 7, 7};
  // Padding is before the text; the mask has a column more, of the cache.
  const auto told = Text{{1, 0, 1}, {1, 0, 1, 1}, x, x, {1, 3}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 1U);
  EXPECT_NEAR(told->perplexity, 4.0 / 3, 1e-6);
}

TEST(NextTokenSums, KnowTokensThatAreRuledOut) {
  const float never = -std::numeric_limits<float>::infinity();
  const auto told = Text{{0, 1}, {}, {never, 0, 0, 0}, {never, 0, 0, 0}, {1, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->perplexity, 1);
  EXPECT_EQ(told->kl_divergence, 0);
}

TEST(NextTokenSums, RefuseTokensOfAnotherVocabulary) {
  EXPECT_THROW((Text{{0, 2}, {}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 2}}.judged()), Error);
  EXPECT_THROW((Text{{0, -1}, {}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 2}}.judged()), Error);
}

TEST(NextTokenSums, AreNotThereForOneToken) { EXPECT_FALSE((Text{{1}, {}, {0, 0}, {0, 0}, {1, 1}}.judged())); }

TEST(FindTokens, KnowsDecodersWithACache) {
  const auto input = [](std::string name) { return data::InputSpec{std::move(name), onnx::DataType::int64, {}}; };
  const std::vector<data::InputSpec> decoder = {input("attention_mask"), input("input_ids"),
                                                input("past_key_values.0.key")};
  const auto places = find_tokens(decoder, {"present.0.key", "logits"});
  ASSERT_TRUE(places);
  EXPECT_EQ(places->ids, 1U);
  EXPECT_EQ(places->mask, 0U);
  EXPECT_EQ(places->logits, 1U);
  EXPECT_FALSE(find_tokens(decoder, {"last_hidden_state"}));
  EXPECT_FALSE(find_tokens({input("attention_mask"), input("input_ids")}, {"logits"}));
}

}  // namespace
}  // namespace detent::run
