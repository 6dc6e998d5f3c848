#include "stream.h"

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "arrays.h"
#include "config/enum_names.h"
#include "fields.h"
#include "run/samples/samples.h"

namespace detent::python {
namespace {

NamedArray input_of_sample(std::string name, nb::handle value) {
  const auto what = fmt::format("input '{}' of a sample", name);
  return shared(std::move(name), value, what);
}

}  // namespace

PythonStream::PythonStream(Host& host, nb::handle source)
    : host_(host),
      source_(source),
      can_rewind_(nb::cast<bool>(source.attr("can_rewind"))),
      size_(nb::cast<std::size_t>(source.attr("size"))) {}

std::optional<std::vector<NamedArray>> PythonStream::next() {
  std::optional<std::vector<NamedArray>> sample;
  host_.call([&] {
    const nb::object given = source_.attr("next")();
    if (given.is_none()) return;
    sample.emplace();
    for (const auto& [name, value] : nb::cast<nb::dict>(given))
      sample->push_back(input_of_sample(nb::cast<std::string>(nb::str(name)), value));
  });
  return sample;
}

void PythonStream::rewind() {
  host_.call([&] { source_.attr("rewind")(); });
}

std::unique_ptr<SampleStream> open_stream(Host& host, nb::handle source, const std::filesystem::path& model,
                                          std::size_t samples, const Resources& resources,
                                          run::PictureFolder pictures) {
  if (source.is_none()) return nullptr;
  if (!nb::isinstance<nb::dict>(source)) return std::make_unique<PythonStream>(host, source);
  const auto given = nb::cast<nb::dict>(source);
  const auto preset = nb::cast<std::string>(given["preset"]);
  const auto names = config::enum_names<data::ImagePreset>();
  pictures.folder = nb::cast<std::filesystem::path>(given["folder"]);
  pictures.preset = static_cast<data::ImagePreset>(config::value_of(names, preset, "preset"));
  pictures.size = nb::cast<std::size_t>(given["size"]);
  return run::open_pictures(pictures, model, samples, resources);
}

}  // namespace detent::python
