// A stream that passes once, put down so that it can be read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "detent/samples.h"

namespace detent::data {

/// Hands on what `inner` yields and puts it down as files in `directory`, whose owner removes them. After rewind()
/// these are yielded, and behind them what is left of `inner`. More bytes than `most` throw resource.
class ReplayStream final : public SampleStream {
 public:
  ReplayStream(SampleStream& inner, std::filesystem::path directory, std::optional<std::uint64_t> most = {});

  std::optional<std::vector<NamedArray>> next() override;
  void rewind() override { at_ = 0; }
  std::size_t size() const override { return inner_.size(); }

 private:
  struct Kept {
    std::vector<NamedArray> sample;  // without their bytes
    std::vector<std::uint64_t> sizes;
  };

  std::filesystem::path path_of(std::size_t sample) const;
  void put_down(const std::vector<NamedArray>& sample);
  std::vector<NamedArray> read(std::size_t sample) const;

  SampleStream& inner_;
  std::filesystem::path directory_;
  std::optional<std::uint64_t> most_;
  std::uint64_t bytes_ = 0;
  std::vector<Kept> kept_;
  std::size_t at_ = 0;  // of the next sample
  bool ended_ = false;  // the inner stream
};

}  // namespace detent::data
