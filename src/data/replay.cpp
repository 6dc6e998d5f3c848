#include "data/replay.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"

namespace detent::data {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

ReplayStream::ReplayStream(SampleStream& inner, std::size_t keep, std::filesystem::path directory)
    : inner_(inner), keep_(keep), directory_(std::move(directory)) {}

std::optional<std::vector<NamedArray>> ReplayStream::next() {
  if (again_) {
    if (*again_ != kept_.end()) return (*again_)++->second.sample;
    if (taken_ == kept_.size()) return std::nullopt;
    throw usage_error("the samples can be read only once, and are needed again",
                      "give something that can be iterated again, such as a list or files, or fewer segments");
  }
  auto sample = inner_.next();
  if (!sample) return std::nullopt;
  ++taken_;
  consider(*sample);
  return sample;
}

void ReplayStream::rewind() {
  if (taken_ > 0) again_ = kept_.begin();
}

void ReplayStream::consider(const std::vector<NamedArray>& sample) {
  if (keep_ == kAll) {
    kept_.emplace(Content{0, taken_}, put_down(sample));
    return;
  }
  Hasher hasher;
  for (const auto& array : sample) {
    hasher.add(static_cast<std::uint64_t>(array.type));
    for (const auto d : array.shape) hasher.add(static_cast<std::uint64_t>(d));
    hasher.add(array.bytes);
  }
  const auto print = hasher.result();
  const Content content{print.high, print.low};
  if (kept_.size() == keep_) {
    const auto last = std::prev(kept_.end());
    if (!(content < last->first)) return;
    std::filesystem::remove(last->second.path);
    kept_.erase(last);
  }
  kept_.emplace(content, put_down(sample));
}

ReplayStream::Kept ReplayStream::put_down(const std::vector<NamedArray>& sample) const {
  const auto path = directory_ / fmt::format("sample-{}.bin", taken_);
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid())
    throw resource_error(fmt::format("cannot create '{}': {}", path.string(), errno_text(errno)),
                         "choose another --work-dir");
  constexpr std::byte kZeros[kAlignment]{};
  std::vector<std::size_t> offsets;
  std::size_t end = 0;
  for (const auto& array : sample) {
    offsets.push_back(end);
    write_all(fd.get(), array.bytes, path);
    const std::size_t padding = kAlignment - array.bytes.size() % kAlignment;  // never none: no file is empty
    write_all(fd.get(), std::span(kZeros, padding), path);
    end += array.bytes.size() + padding;
  }
  std::vector<NamedArray> kept = sample;
  const auto file = sample.empty() ? nullptr : MappedFile::open(path, "working file");
  for (std::size_t i = 0; i < kept.size(); ++i) {
    kept[i].bytes = file->bytes().subspan(offsets[i], kept[i].bytes.size());
    kept[i].owner = file;
  }
  return {path, std::move(kept)};
}

}  // namespace detent::data
