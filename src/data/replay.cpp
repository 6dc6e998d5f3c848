#include "data/replay.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace detent::data {
namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

ReplayStream::ReplayStream(SampleStream& inner, std::size_t keep, std::filesystem::path directory)
    : inner_(inner), keep_(keep), directory_(std::move(directory)) {}

std::optional<std::vector<NamedArray>> ReplayStream::next() {
  if (at_ < kept_.size()) return kept_[at_++];
  if (at_ < taken_) {
    throw usage_error("the samples can be read only once, and are needed again",
                      "give something that can be iterated again, such as a list or files, or fewer segments");
  }
  if (ended_) return std::nullopt;
  auto sample = inner_.next();
  if (!sample) {
    ended_ = true;
    return std::nullopt;
  }
  ++taken_;
  ++at_;
  if (taken_ <= keep_) put_down(*sample);
  return sample;
}

void ReplayStream::put_down(const std::vector<NamedArray>& sample) {
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
  kept_.push_back(std::move(kept));
}

}  // namespace detent::data
