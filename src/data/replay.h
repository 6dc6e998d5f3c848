// A stream that passes once, with its beginning kept so that it can be read again.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/samples.h"

namespace detent::data {

/// Hands on what `inner` yields and puts the first `keep` samples down as files in `directory`, whose owner removes
/// them. After rewind() those come out of the files; going on behind them throws usage, unless the inner stream is only
/// now read so far.
class ReplayStream final : public SampleStream {
 public:
  ReplayStream(SampleStream& inner, std::size_t keep, std::filesystem::path directory);

  std::optional<std::vector<NamedArray>> next() override;
  void rewind() override { at_ = 0; }
  std::size_t size() const override { return inner_.size(); }

 private:
  void put_down(const std::vector<NamedArray>& sample);

  SampleStream& inner_;
  std::size_t keep_;
  std::filesystem::path directory_;
  std::vector<std::vector<NamedArray>> kept_;  // arrays in mapped files
  std::size_t at_ = 0;
  std::size_t taken_ = 0;  // of the inner stream
  bool ended_ = false;
};

}  // namespace detent::data
