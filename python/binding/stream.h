// Samples that Python hands over.
#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <memory>

#include "detent/resources.h"
#include "detent/samples.h"
#include "host.h"
#include "run/samples/samples.h"

namespace detent::python {

/// A stream over an object with next() -> dict or None, rewind(), can_rewind and size (see _samples.py). Its methods
/// run in the thread of the host; the arrays are shared, not copied.
class PythonStream final : public SampleStream {
 public:
  /// `source` must outlive the stream.
  PythonStream(Host& host, nanobind::handle source);

  std::optional<std::vector<NamedArray>> next() override;
  void rewind() override;
  bool can_rewind() const override { return can_rewind_; }
  std::size_t size() const override { return size_; }

 private:
  Host& host_;
  nanobind::handle source_;
  bool can_rewind_;
  std::size_t size_;
};

/// The stream that a call reads from what Python gave as its samples: an object as above, or a dict {"folder",
/// "preset", "size"} of pictures for the one input of `model`. Null for None. Throws Error, of files.
std::unique_ptr<SampleStream> open_stream(Host& host, nanobind::handle source, const std::filesystem::path& model,
                                          std::size_t samples, const Resources& resources, run::PictureFolder pictures);

}  // namespace detent::python
