#include "stream.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "arrays.h"
#include "fields.h"

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

}  // namespace detent::python
