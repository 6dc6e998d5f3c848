// A stream that passes once, with some of its samples kept so that they can be read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "detent/samples.h"

namespace detent::data {

/// Hands on what `inner` yields. The `keep` samples of smallest fingerprints, whatever order they come in, are put down
/// as files in `directory`, whose owner removes them: after rewind() these are yielded, in the order of their
/// fingerprints. Going on behind them throws usage, unless there were no others. With kAll they are yielded in the
/// order in which they came.
class ReplayStream final : public SampleStream {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  ReplayStream(SampleStream& inner, std::size_t keep, std::filesystem::path directory);

  std::optional<std::vector<NamedArray>> next() override;
  void rewind() override;
  std::size_t size() const override { return inner_.size(); }

 private:
  struct Kept {
    std::filesystem::path path;
    std::vector<NamedArray> sample;  // arrays in the mapped file
  };
  using Content = std::pair<std::uint64_t, std::uint64_t>;

  void consider(const std::vector<NamedArray>& sample);
  Kept put_down(const std::vector<NamedArray>& sample) const;

  SampleStream& inner_;
  std::size_t keep_;
  std::filesystem::path directory_;
  std::multimap<Content, Kept> kept_;
  std::optional<std::multimap<Content, Kept>::const_iterator> again_;  // of what is read again, the next
  std::size_t taken_ = 0;                                              // of the inner stream
};

}  // namespace detent::data
