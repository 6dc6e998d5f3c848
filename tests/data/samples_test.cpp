#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
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

using Batching = DataTest;
using Origins = std::vector<std::string>;

std::vector<float> range(int first, int count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), static_cast<float>(first));
  return out;
}

TEST_F(Batching, FilesAreSamplesAsStored) {
  put("a.npy", counting({5, 2}));
  put("b.npy", counting({1, 2}));
  const std::vector<Sample> samples = load({input("x", {-1, 2})});
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].inputs[0].shape, (Dims{5, 2}));
}

TEST_F(Batching, UnknownRankTakesEverything) {
  put("a.npy", counting({}));
  put("b.npy", counting({2, 1, 1}));
  EXPECT_EQ(load({{"x", DataType::float32, std::nullopt}}).size(), 2U);
}

TEST_F(Batching, BatchSizeSplitsDynamicInputs) {
  put("a.npy", counting({5, 2}));
  put("b.npy", counting({2, 2}, 100));
  const std::vector<Sample> samples = load({input("x", {-1, 2})}, {0, 2});
  ASSERT_EQ(origins(samples), (Origins{"a.npy[0:2]", "a.npy[2:4]", "a.npy[4:5]", "b.npy"}));
  EXPECT_EQ(values(samples[1].inputs[0]), range(4, 4));
  EXPECT_EQ(samples[2].inputs[0].shape, (Dims{1, 2}));
  EXPECT_EQ(values(samples[2].inputs[0]), range(8, 2));
}

TEST_F(Batching, HowManyThereAreIsKnownBeforehand) {
  put("a.npy", counting({5, 2}));
  const std::vector<InputSpec> free{input("x", {-1, 2})};
  const auto one_file = [&](const std::vector<InputSpec>& inputs, const SourceOptions& options) {
    const auto source = open_samples(at("a.npy"), inputs, options);
    const auto before = source->sample_count();
    EXPECT_EQ(all(*source).size(), before);
    EXPECT_EQ(source->sample_count(), before);
    return before;
  };
  EXPECT_EQ(one_file(free, {}), 1U);
  EXPECT_EQ(one_file(free, {0, 1}), 5U);
  EXPECT_EQ(one_file(free, {0, 2}), 3U);
  EXPECT_EQ(one_file(free, {4, 1}), 4U);
  EXPECT_EQ(one_file({input("x", {2, 2})}, {}), 2U) << "the last row is left over";
  put("b.npy", counting({5, 2}, 100));
  EXPECT_EQ(open(free, {0, 2})->sample_count(), 6U);
  const auto joined = open({input("x", {10, 2})});
  EXPECT_EQ(joined->sample_count(), 1U);
  EXPECT_EQ(all(*joined).size(), 1U);
}

TEST_F(Batching, BatchSizeSplitsAllInputsAlike) {
  write_zip(at("a.npz"), {{"x.npy", counting({4, 2})}, {"y.npy", counting({4}, 50)}});
  const std::vector<InputSpec> inputs{input("x", {-1, 2}), input("y", {-1})};
  const std::vector<Sample> samples = load(inputs, {0, 3});
  ASSERT_EQ(origins(samples), (Origins{"a.npz[0:3]", "a.npz[3:4]"}));
  EXPECT_EQ(values(samples[1].inputs[1]), range(53, 1));
  write_zip(at("a.npz"), {{"x.npy", counting({4, 2})}, {"y.npy", counting({3})}});
  expect_bad(inputs, {"a.npz'", "batches of 3", "'x' [4, 2], 'y' [3]"}, {0, 3});
  EXPECT_EQ(load(inputs).size(), 1U);
}

TEST_F(Batching, ScalarsCannotBeSplit) {
  write_zip(at("a.npz"), {{"x.npy", counting({4, 2})}, {"s.npy", counting({})}});
  expect_bad({input("x", {-1, 2}), input("s", {})}, {"cannot be split", "'s' []"}, {0, 2});
  expect_bad({input("x", {2, 2}), input("s", {})}, {"input 'x' expects float32 [2, 2], found float32 [4, 2]"});
  EXPECT_EQ(load({input("x", {4, 2}), input("s", {})}).size(), 1U);
}

TEST_F(Batching, BatchSizeMustSuitTheModel) {
  put("a.npy", counting({8, 2}));
  expect_error(
      [&] {
        open({input("x", {4, 2})}, {0, 3});
      },
      {"batch size 3", "'x' is float32 [4, 2]", "make it 4"}, ErrorKind::usage);
  expect_error([&] { open({input("x", {-1, 2})}, {0, -1}); }, {"negative"}, ErrorKind::usage);
  EXPECT_EQ(load({input("x", {4, 2})}, {0, 4}).size(), 2U);
}

TEST_F(Batching, StaticBatchSplitsLongerFiles) {
  put("a.npy", counting({6, 2}));
  const std::vector<Sample> samples = load({input("x", {2, 2})});
  ASSERT_EQ(origins(samples), (Origins{"a.npy[0:2]", "a.npy[2:4]", "a.npy[4:6]"}));
  EXPECT_EQ(values(samples[2].inputs[0]), range(8, 4));
}

TEST_F(Batching, RowsThatDoNotFillABatchAreNoted) {
  put("a.npy", counting({7, 2}));
  put("b.npy", counting({5, 2}));
  put("c.npy", counting({6, 2}));
  const auto source = open({input("x", {4, 2})});
  EXPECT_EQ(origins(all(*source)), (Origins{"a.npy[0:4]", "b.npy[0:4]", "c.npy[0:4]"}));
  EXPECT_EQ(source->notes(),
            (Origins{"3 rows of 'a.npy' do not fill the model's batch of 4", "3 rows of 2 files more likewise"}));
  source->rewind();
  EXPECT_TRUE(source->notes().empty());
  EXPECT_EQ(all(*source).size(), 3U);
  EXPECT_EQ(source->notes().size(), 2U);
}

TEST_F(Batching, ShortFilesAreJoined) {
  for (int i = 0; i < 5; ++i) put(fmt::format("{}.npy", i), counting({1, 2}, static_cast<float>(2 * i)));
  const auto source = open({input("x", {2, 2})});
  const std::vector<Sample> samples = all(*source);
  ASSERT_EQ(origins(samples), (Origins{"0.npy..1.npy", "2.npy..3.npy"}));
  EXPECT_EQ(samples[1].inputs[0].shape, (Dims{2, 2}));
  EXPECT_EQ(values(samples[1].inputs[0]), range(4, 4));
  EXPECT_EQ(source->notes(), Origins{"1 row of '4.npy' does not fill the model's batch of 2"});
}

TEST_F(Batching, JoinedFilesMayStraddleBatches) {
  for (int i = 0; i < 4; ++i) put(fmt::format("x/{}.npy", i), counting({3}, static_cast<float>(3 * i)));
  for (int i = 0; i < 4; ++i) put(fmt::format("y/{}.npy", i), counting({3, 1}, static_cast<float>(3 * i)));
  const std::vector<Sample> samples = load({input("x", {4}), input("y", {-1, -1})});
  ASSERT_EQ(samples.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    for (const Array& array : samples[static_cast<std::size_t>(i)].inputs) EXPECT_EQ(values(array), range(4 * i, 4));
  }
}

TEST_F(Batching, RowsOfDifferentShapeCannotBeJoined) {
  put("a.npy", counting({1, 2}));
  put("b.npy", counting({1, 3}));
  expect_bad({input("x", {2, -1})}, {"b.npy'", "[3]", "[2] in 'a.npy'", "pad them"});
}

TEST_F(Batching, NotOneFullBatch) {
  put("a.npy", counting({1, 2}));
  expect_bad({input("x", {4, 2})}, {"gives no sample", "1 row of 'a.npy' does not fill the model's batch of 4"});
  put("a.npy", counting({0, 2}));
  expect_bad({input("x", {-1, 2})}, {"gives no sample", "it holds no row"}, {0, 2});
}

TEST_F(Batching, InputsThatFixDifferentRowsMatchExactlyOrNotAtAll) {
  write_zip(at("a.npz"), {{"x.npy", counting({4, 2})}, {"y.npy", counting({4})}});
  expect_bad({input("x", {2, 2}), input("y", {4})}, {"input 'x' expects float32 [2, 2], found float32 [4, 2]"});
}

TEST_F(Batching, OneRowWithoutABatchAxis) {
  put("a.npy", counting({2, 3}));
  for (const std::int64_t batch : {1, -1}) {
    const std::vector<Sample> samples = load({input("x", {batch, 2, 3})});
    EXPECT_EQ(samples[0].inputs[0].shape, (Dims{1, 2, 3}));
  }
  expect_bad({input("x", {4, 2, 3})}, {"expects float32 [4, 2, 3], found float32 [2, 3]", "array[None]"});
  expect_bad({input("x", {2})}, {"found float32 [2, 3]", "save arrays of shape [2]"});
  expect_bad({input("x", {})}, {"expects float32 [], found float32 [2, 3]"});
}

TEST_F(Batching, TypesMustMatch) {
  put("a.npy", npy("<f8", {1, 2}, std::string(16, '\0')));
  expect_bad({input("x", {1, 2})},
             {"a.npy': input 'x' expects float32 [1, 2], found float64 [1, 2]", "astype('float32')"});
  expect_bad({input("x", {1, 2}, DataType::bfloat16)}, {"bfloat16", "input_N.pb"});
  expect_bad({{"x", DataType::float32, std::nullopt}}, {"float32 of any shape"});
}

TEST_F(Batching, ChannelsLastGetsAHint) {
  put("a.npy", counting({1, 4, 5, 3}));
  expect_bad({input("x", {-1, 3, -1, -1})}, {"found float32 [1, 4, 5, 3]", "transpose(0, 3, 1, 2)"});
}

TEST_F(Batching, ChannelsLastWithoutABatchGetsAHint) {
  put("a.npy", counting({4, 5, 3}));
  expect_bad({input("x", {1, 3, 4, 5})}, {"found float32 [4, 5, 3]", "transpose(2, 0, 1)[None]"});
  expect_bad({input("x", {2, 4, 5, 3})}, {"found float32 [4, 5, 3]", "array[None]"});
}

TEST_F(Batching, MaxSamplesAndRewind) {
  put("a.npy", counting({6, 2}));
  const auto source = open({input("x", {2, 2})}, {2, 0});
  EXPECT_EQ(all(*source).size(), 2U);
  EXPECT_FALSE(source->next().has_value());
  source->rewind();
  EXPECT_EQ(origins(all(*source)), (Origins{"a.npy[0:2]", "a.npy[2:4]"}));
}

TEST_F(Batching, ZeroLengthAxesAreKept) {
  put("a.npy", counting({2, 0, 4}));
  EXPECT_EQ(load({input("past", {-1, -1, 4})})[0].inputs[0].shape, (Dims{2, 0, 4}));
  EXPECT_EQ(load({input("past", {1, -1, 4})}).size(), 2U);
}

TEST_F(Batching, BoolsAreZeroOrOne) {
  put("a.npy", npy("|b1", {2}, std::string("\x00\x01", 2)));
  EXPECT_EQ(load({input("x", {2}, DataType::boolean)}).size(), 1U);
  put("a.npy", npy("|b1", {2}, "\x01\x02"));
  expect_bad({input("x", {2}, DataType::boolean)}, {"a.npy", "neither 0 nor 1"});
}

TEST_F(Batching, SamplesOutliveTheSource) {
  put("a.npy", counting({4, 2}));
  std::vector<Sample> samples = load({input("x", {1, 2})});
  samples.erase(samples.begin());
  EXPECT_EQ(values(samples[0].inputs[0]), range(2, 2));
  EXPECT_EQ(values(samples[2].inputs[0]), range(6, 2));
}

std::size_t resident_file_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "RssFile:" && status >> word) return std::stoul(word);
  }
  return 0;
}

TEST_F(Batching, MemoryFollowsTheSamplesNotTheFile) {
  constexpr std::int64_t kRow = 300;      // smaller than a page, and not a part of one
  put("a.npy", counting({40000, kRow}));  // 46 MiB
  const auto source = open({input("x", {-1, kRow})}, {0, 1});
  const std::size_t before = resident_file_kib();
  std::size_t peak = before;
  double sum = 0;
  for (int i = 0; auto sample = source->next(); ++i) {
    for (const float v : values(sample->inputs[0])) sum += static_cast<double>(v);
    if (i % 1000 == 0) peak = std::max(peak, resident_file_kib());
  }
  EXPECT_GT(sum, 0);
  EXPECT_LT(peak - before, 4096U);
}

std::string origin_after(SampleSource& source, std::size_t skipped) {
  source.rewind();
  source.skip(skipped);
  const auto sample = source.next();
  return sample ? sample->origin : "";
}

TEST_F(Batching, FilesOfOneSampleEachArePassedOverUnread) {
  for (const char* name : {"a.npy", "b.npy", "c.npy", "d.npy"}) put(name, counting({1, 2}));
  const auto source = open({input("x", {-1, 2})}, {.max_samples = 3});
  put("b.npy", "no longer an array");
  EXPECT_THROW(origin_after(*source, 2), Error) << "not read before";
  put("b.npy", counting({1, 2}));
  EXPECT_EQ(origin_after(*source, 3), "");
  put("b.npy", "no longer an array");
  EXPECT_EQ(origin_after(*source, 2), "c.npy");
  EXPECT_EQ(origin_after(*source, 3), "");
  EXPECT_THROW(origin_after(*source, 1), Error);
}

TEST_F(Batching, FilesOfOtherNumbersOfSamplesAreSkippedBySamples) {
  put("a.npy", counting({1, 2}));
  put("b.npy", counting({3, 2}));
  put("c.npy", counting({1, 2}));
  const auto source = open({input("x", {-1, 2})}, {.batch_size = 1});
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(origin_after(*source, 1), "b.npy[0:1]");
    EXPECT_EQ(origin_after(*source, 3), "b.npy[2:3]");
    EXPECT_EQ(origin_after(*source, 4), "c.npy");
    EXPECT_EQ(origin_after(*source, 5), "");
  }
}

TEST_F(Batching, SharesAreSkippedByWhatTheyHold) {
  for (const char* name : {"a.npy", "b.npy", "c.npy", "d.npy", "e.npy"}) put(name, counting({1, 2}));
  const auto source = open({input("x", {-1, 2})}, {.share = 1, .shares = 2});
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_EQ(origin_after(*source, 0), "b.npy");
    EXPECT_EQ(origin_after(*source, 1), "d.npy");
    EXPECT_EQ(origin_after(*source, 2), "");
  }
}

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

// Samples named by their number.
class Numbers final : public SampleSource {
 public:
  explicit Numbers(std::size_t count) : count_(count) {}
  std::optional<Sample> next() override {
    if (next_ == count_) return std::nullopt;
    return Sample{std::to_string(next_++), {}};
  }
  void rewind() override { next_ = 0; }
  std::size_t sample_count() const override { return count_; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::size_t count_, next_ = 0;
};

std::vector<std::string> names_of(SampleSubset& part) {
  std::vector<std::string> names;
  while (const auto sample = part.next()) names.push_back(sample->origin);
  EXPECT_EQ(names.size(), part.sample_count());
  return names;
}

using Names = std::vector<std::string>;

TEST(SampleSubset, HasTheLastOfEveryFew) {
  Numbers inner(10);
  SampleSubset last(inner, 4, SampleSubset::Kind::last);
  EXPECT_EQ(names_of(last), (Names{"3", "7"}));
  SampleSubset others(inner, 4, SampleSubset::Kind::others);
  EXPECT_EQ(names_of(others), (Names{"0", "1", "2", "4", "5", "6", "8", "9"}));
  others.rewind();
  EXPECT_EQ(names_of(others).size(), 8U);
}

TEST(SampleSubset, HasTheLastOfAFew) {
  Numbers inner(2);
  SampleSubset last(inner, 4, SampleSubset::Kind::last), others(inner, 4, SampleSubset::Kind::others);
  last.rewind();
  EXPECT_EQ(names_of(last), Names{"1"});
  others.rewind();
  EXPECT_EQ(names_of(others), Names{"0"});
}

TEST(SampleSubset, ASingleSampleIsInBoth) {
  Numbers inner(1);
  for (const auto kind : {SampleSubset::Kind::last, SampleSubset::Kind::others}) {
    SampleSubset part(inner, 4, kind);
    EXPECT_EQ(names_of(part), Names{"0"});
  }
}

}  // namespace
}  // namespace detent::data::test
