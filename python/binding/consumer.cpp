#include "consumer.h"

#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "arrays.h"

namespace detent::python {
namespace nb = nanobind;

PythonConsumer::PythonConsumer(Host& host, nb::handle runtime)
    : host_(host), runtime_(runtime), name_(nb::cast<std::string>(nb::str(runtime.attr("name")))) {}

Consumer::Run PythonConsumer::load(const std::filesystem::path& model) {
  std::shared_ptr<nb::object> loaded;
  host_.call([&] {
    nb::object made = runtime_.attr("load")(model);
    if (made.is_none()) return;
    // The last owner may go in any thread, and then Python has to be asked in.
    loaded = std::shared_ptr<nb::object>(new nb::object(std::move(made)), [](nb::object* held) {
      const nb::gil_scoped_acquire python;
      delete held;
    });
  });
  if (!loaded) return {};
  return [this, loaded](std::span<const NamedArray> inputs) {
    std::vector<NamedArray> outputs;
    host_.call([&] {
      nb::list given;
      for (const auto& array : inputs) given.append(to_numpy(array));
      for (const nb::handle value : (*loaded)(given))
        outputs.push_back(shared("", value, fmt::format("output {} of {}", outputs.size() + 1, name_)));
    });
    return outputs;
  };
}

}  // namespace detent::python
