// A part of the samples of another source.
#pragma once

#include <cstddef>

#include "data/sample.h"

namespace detent::data {

/// Of every `one_in` samples the last, or all but these. Of fewer samples than `one_in` the last is the last of all;
/// a single one is in both parts. The inner source must know its number, outlive this, and be read by nothing else in
/// between.
class SampleSubset final : public SampleSource {
 public:
  enum class Kind { last, others };
  SampleSubset(SampleSource& inner, std::size_t one_in, Kind kind);

  std::optional<Sample> next() override;
  void rewind() override;
  std::size_t sample_count() const override;
  std::vector<std::string> notes() const override { return inner_.notes(); }

 private:
  bool has(std::size_t sample) const;

  SampleSource& inner_;
  std::size_t all_;
  std::size_t one_in_;
  Kind kind_;
  std::size_t next_ = 0;  // of the inner source
};

}  // namespace detent::data
