#include "data/part.h"

#include <algorithm>

namespace detent::data {

SampleSubset::SampleSubset(SampleSource& inner, std::size_t one_in, Kind kind)
    : inner_(inner),
      all_(inner.sample_count()),
      one_in_(std::max<std::size_t>(1, std::min(one_in, all_))),
      kind_(kind) {
  rewind();
}

bool SampleSubset::has(std::size_t sample) const {
  if (all_ == 1) return true;
  return (sample % one_in_ == one_in_ - 1) == (kind_ == Kind::last);
}

std::optional<Sample> SampleSubset::next() {
  std::size_t passed = 0;
  while (next_ + passed < all_ && !has(next_ + passed)) ++passed;
  inner_.skip(passed);
  next_ += passed + 1;
  return inner_.next();
}

void SampleSubset::rewind() {
  inner_.rewind();
  next_ = 0;
}

std::size_t SampleSubset::sample_count() const {
  std::size_t count = 0;
  for (std::size_t sample = 0; sample < all_; ++sample) count += has(sample) ? 1 : 0;
  return count;
}

}  // namespace detent::data
