#include "run/samples/sample_feed.h"

#include <gtest/gtest.h>

#include <cstring>

namespace detent::run {
namespace {

// Samples of one number each, which counts how often one is read.
class Numbers final : public data::SampleSource {
 public:
  explicit Numbers(std::size_t count) : count_(count) {}

  std::optional<data::Sample> next() override {
    if (next_ == count_) return std::nullopt;
    ++read;
    const auto value = std::make_shared<float>(static_cast<float>(next_++));
    return data::Sample{"a number", {{onnx::DataType::float32, {1}, std::as_bytes(std::span(value.get(), 1)), value}}};
  }
  void rewind() override { next_ = 0; }
  std::size_t sample_count() const override { return count_; }
  std::vector<std::string> notes() const override { return {}; }

  std::size_t read = 0;

 private:
  std::size_t count_, next_ = 0;
};

std::vector<float> all_of(data::SampleSource& source, std::size_t skipped = 0) {
  std::vector<float> values;
  source.rewind();
  source.skip(skipped);
  while (const auto sample = source.next()) {
    values.emplace_back();
    std::memcpy(&values.back(), sample->inputs.front().bytes.data(), sizeof(float));
  }
  return values;
}

TEST(ContentOrderedSamples, SkipsAndReadsAgainWithoutTheInnerSource) {
  Numbers numbers(20);
  ContentOrderedSamples source(numbers, {});
  const auto all = all_of(source);
  ASSERT_EQ(all.size(), 20U);
  const auto read = numbers.read;
  EXPECT_EQ(all_of(source, 15), std::vector(all.begin() + 15, all.end()));
  EXPECT_EQ(all_of(source, 30), std::vector<float>{});
  EXPECT_EQ(all_of(source), all);
  EXPECT_EQ(numbers.read, read);
}

TEST(ContentOrderedSamples, GivesTheSameWhateverItMayHold) {
  Numbers numbers(20);
  ContentOrderedSamples whole(numbers, {});
  const auto all = all_of(whole);
  ContentOrderedSamples few(numbers, {.ahead = 3 * sizeof(float)});
  EXPECT_EQ(all_of(few), all);
  EXPECT_EQ(all_of(few, 7), std::vector(all.begin() + 7, all.end()));
  ContentOrderedSamples once(numbers, {});
  once.keep(false);
  EXPECT_EQ(all_of(once, 2), std::vector(all.begin() + 2, all.end()));
  EXPECT_EQ(all_of(once), all);
}

}  // namespace
}  // namespace detent::run
