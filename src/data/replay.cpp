#include "data/replay.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/working_file.h"

namespace detent::data {
namespace {

constexpr std::uint64_t kAlignment = 64;

// Of an array in its file; never without padding, so that no file is empty.
std::uint64_t padded(std::uint64_t size) { return size + kAlignment - size % kAlignment; }

}  // namespace

ReplayStream::ReplayStream(SampleStream& inner, std::filesystem::path directory, std::optional<std::uint64_t> most)
    : inner_(inner), directory_(std::move(directory)), most_(most) {}

std::optional<std::vector<NamedArray>> ReplayStream::next() {
  if (at_ < kept_.size()) return read(at_++);
  auto sample = ended_ ? std::nullopt : inner_.next();
  ended_ = !sample;
  if (!sample) return std::nullopt;
  put_down(*sample);
  ++at_;
  return sample;
}

std::filesystem::path ReplayStream::path_of(std::size_t sample) const {
  return directory_ / fmt::format("sample-{}.bin", sample);
}

void ReplayStream::put_down(const std::vector<NamedArray>& sample) {
  Kept kept;
  for (const auto& array : sample) {
    kept.sizes.push_back(array.bytes.size());
    bytes_ += padded(array.bytes.size());
    kept.sample.push_back({array.name, array.type, array.shape, {}, {}});
  }
  if (most_ && bytes_ > *most_)
    throw resource_error(fmt::format("the samples can be read only once, and keeping them takes more than the disk "
                                     "budget of {}",
                                     format_size(*most_)),
                         "raise the budget, or give something that can be iterated again, such as a list or files");
  const auto path = path_of(kept_.size());
  const UniqueFd fd = create_working_file(path);
  constexpr std::byte kZeros[kAlignment]{};
  for (const auto& array : sample) {
    write_all(fd.get(), array.bytes, path);
    write_all(fd.get(), std::span(kZeros, padded(array.bytes.size()) - array.bytes.size()), path);
  }
  kept_.push_back(std::move(kept));
}

std::vector<NamedArray> ReplayStream::read(std::size_t sample) const {
  const auto& kept = kept_[sample];
  auto arrays = kept.sample;
  if (arrays.empty()) return arrays;
  const auto file = MappedFile::open(path_of(sample), "working file");
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    arrays[i].bytes = file->bytes().subspan(at, kept.sizes[i]);
    arrays[i].owner = file;
    at += padded(kept.sizes[i]);
  }
  return arrays;
}

}  // namespace detent::data
