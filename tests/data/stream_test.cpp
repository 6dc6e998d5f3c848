#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/sample.h"
#include "data/source.h"
#include "detent/samples.h"
#include "support.h"

namespace detent::data::test {
namespace {

using Arrays = std::vector<NamedArray>;

NamedArray array(std::string name, Dims shape, float first = 0) {
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count));
  std::iota(values->begin(), values->end(), first);
  const auto bytes = std::as_bytes(std::span(*values));
  return {std::move(name), ElementType::float32, std::move(shape), bytes, values};
}

// Hands out what it is given, and counts how it is used.
class Given final : public SampleStream {
 public:
  explicit Given(std::vector<Arrays> samples, bool repeatable = true)
      : samples_(std::move(samples)), repeatable_(repeatable) {}
  std::optional<Arrays> next() override {
    if (at_ == samples_.size()) return std::nullopt;
    return samples_[at_++];
  }
  void rewind() override {
    ++rewound;
    at_ = 0;
  }
  bool can_rewind() const override { return repeatable_; }
  std::size_t size() const override { return known; }

  int rewound = 0;
  std::size_t known = 0;

 private:
  std::vector<Arrays> samples_;
  bool repeatable_;
  std::size_t at_ = 0;
};

std::vector<Arrays> rows(int count) {
  std::vector<Arrays> samples;
  for (int i = 0; i < count; ++i) samples.push_back({array("x", {1, 2}, static_cast<float>(10 * i))});
  return samples;
}

void expect_bad(const Arrays& sample, const std::vector<InputSpec>& inputs, const std::vector<std::string>& parts) {
  Given stream({sample});
  expect_error([&] { open_samples(stream, inputs)->next(); }, parts);
}

TEST(Stream, YieldsSamplesInTheOrderOfTheInputs) {
  Given stream({{array("y", {3}, 5), array("x", {1, 2})}, {array("x", {1, 2}), array("y", {4})}});
  const auto source = open_samples(stream, {input("x", {-1, 2}), input("y", {-1})});
  const auto samples = all(*source);
  ASSERT_EQ(origins(samples), (std::vector<std::string>{"sample 1", "sample 2"}));
  EXPECT_EQ(samples[0].inputs[0].shape, (Dims{1, 2}));
  EXPECT_EQ(values(samples[0].inputs[1]), (std::vector<float>{5, 6, 7}));
}

TEST(Stream, LookingAtTheFirstAsksForNoSecondPass) {
  Given stream(rows(3), false);
  const auto source = open_samples(stream, {input("x", {-1, 2})});
  for (int look = 0; look < 3; ++look) {
    EXPECT_EQ(values(source->next()->inputs[0]).front(), 0);
    source->rewind();
  }
  EXPECT_EQ(all(*source).size(), 3U);
  EXPECT_EQ(stream.rewound, 0);
  expect_error([&] { source->rewind(); }, {"only once", "iterated again"}, ErrorKind::usage);
}

TEST(Stream, IsCountedWithoutASecondPass) {
  Given big({{array("x", {4, 2})}, {array("x", {4, 2})}});
  big.known = 2;
  const auto source = open_samples(big, {input("x", {-1, 2})}, {0, 1});
  EXPECT_EQ(source->sample_count(), 8U);
  EXPECT_EQ(all(*source).size(), 8U);
  EXPECT_EQ(source->sample_count(), 8U);
  EXPECT_EQ(big.rewound, 0);
}

TEST(Stream, BeginsAnew) {
  Given stream(rows(3));
  const auto source = open_samples(stream, {input("x", {-1, 2})});
  EXPECT_EQ(source->sample_count(), 0U);
  EXPECT_EQ(all(*source).size(), 3U);
  EXPECT_EQ(source->sample_count(), 3U);
  source->rewind();
  EXPECT_EQ(all(*source).size(), 3U);
  EXPECT_EQ(stream.rewound, 1);
}

TEST(Stream, IsSplitJoinedAndCutShortAsFilesAre) {
  Given big({{array("x", {4, 2})}});
  EXPECT_EQ(origins(all(*open_samples(big, {input("x", {-1, 2})}, {0, 2}))),
            (std::vector<std::string>{"sample 1[0:2]", "sample 1[2:4]"}));
  Given small(rows(5));
  const auto joined = open_samples(small, {input("x", {2, 2})});
  EXPECT_EQ(origins(all(*joined)), (std::vector<std::string>{"sample 1..sample 2", "sample 3..sample 4"}));
  EXPECT_EQ(joined->notes().size(), 1U);
  Given many(rows(5));
  EXPECT_EQ(all(*open_samples(many, {input("x", {-1, 2})}, {2, 0})).size(), 2U);
}

TEST(Stream, ASingleInputNeedsNoName) {
  Given stream({{array("", {1, 2})}});
  EXPECT_EQ(all(*open_samples(stream, {input("x", {-1, 2})})).size(), 1U);
}

TEST(Stream, RefusesWhatDoesNotFit) {
  const std::vector<InputSpec> two{input("x", {-1, 2}), input("y", {-1})};
  expect_bad({array("x", {1, 2})}, two, {"sample 1: the input 'y' is missing", "the model's inputs"});
  expect_bad({array("x", {1, 2}), array("z", {1})}, two, {"'z' is not an input"});
  expect_bad({array("x", {1, 2}), array("x", {1, 2})}, {input("x", {-1, 2})}, {"'x' appears twice"});
  expect_bad({array("x", {1, 3})}, {input("x", {-1, 2})}, {"sample 1: input 'x' expects float32 [?, 2]", "[1, 3]"});
  expect_bad({array("x", {1, 2})}, {input("x", {-1, 2}, DataType::int64)}, {"expects int64", "float32"});
  auto cut = array("x", {1, 2});
  cut.bytes = cut.bytes.first(4);
  expect_bad({cut}, {input("x", {-1, 2})}, {"4 bytes"});
}

TEST(Stream, OneThatPassesOnceIsKept) {
  std::vector<Arrays> samples{{array("x", {1, 2}), array("y", {0})}};
  for (const auto& sample : rows(4)) samples.push_back({sample[0], array("y", {3}, 7)});
  const std::vector<InputSpec> inputs{input("x", {-1, 2}), input("y", {-1})};
  const TempDir folder;
  Given stream(samples, false), list(samples, true);
  ReplayStream replay(stream, folder.path());
  const auto source = open_samples(replay, inputs), expected = open_samples(list, inputs);
  source->next();
  source->rewind();  // before the end
  for (int pass = 0; pass < 3; ++pass) {
    source->rewind();
    expected->rewind();
    const auto read = all(*source), given = all(*expected);
    ASSERT_EQ(read.size(), given.size());
    for (std::size_t s = 0; s < read.size(); ++s) {
      for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(values(read[s].inputs[i]), values(given[s].inputs[i]));
    }
  }
  EXPECT_EQ(stream.rewound, 0);
}

TEST(Stream, OneThatPassesOnceKeepsToItsDisk) {
  const TempDir folder;
  Given stream(rows(9), false);
  ReplayStream replay(stream, folder.path(), 300);
  const auto source = open_samples(replay, {input("x", {-1, 2})});
  expect_error([&] { all(*source); }, {"only once", "300", "list"}, ErrorKind::resource);
}

TEST(Stream, WithoutSamplesIsAnError) {
  Given stream({});
  expect_error([&] { open_samples(stream, {input("x", {-1, 2})})->next(); }, {"gives no sample"});
}

}  // namespace
}  // namespace detent::data::test
