#include "data/source.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace detent::data {
namespace {

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
}  // namespace detent::data
