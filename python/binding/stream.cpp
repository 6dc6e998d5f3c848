#include "stream.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "fields.h"

namespace detent::python {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// Numbers of DLPack's kinds of types; nanobind names only some.
constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6;

std::optional<ElementType> element_type(nb::dlpack::dtype type) {
  struct Known {
    std::uint8_t code, bits;
    ElementType type;
  };
  static constexpr Known kKnown[] = {
      {kFloat, 32, ElementType::float32},   {kFloat, 64, ElementType::float64}, {kFloat, 16, ElementType::float16},
      {kBfloat, 16, ElementType::bfloat16}, {kInt, 8, ElementType::int8},       {kInt, 16, ElementType::int16},
      {kInt, 32, ElementType::int32},       {kInt, 64, ElementType::int64},     {kUint, 8, ElementType::uint8},
      {kUint, 16, ElementType::uint16},     {kUint, 32, ElementType::uint32},   {kUint, 64, ElementType::uint64},
      {kBool, 8, ElementType::boolean}};
  for (const auto& known : kKnown) {
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return known.type;
  }
  return std::nullopt;
}

// The name of a numpy array's type: "bfloat16" of those of the package ml_dtypes, which no protocol passes on.
std::string numpy_type(nb::handle value) {
  const nb::object name = nb::getattr(nb::getattr(value, "dtype", nb::none()), "name", nb::none());
  return nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : std::string();
}

NamedArray shared(std::string name, nb::handle value) {
  AnyArray array;
  const auto numpy = numpy_type(value);
  const bool is_bfloat16 = numpy == "bfloat16" && nb::hasattr(value, "view");
  const nb::object given = is_bfloat16 ? value.attr("view")("uint16") : nb::borrow(value);
  if (!nb::try_cast<AnyArray>(given, array, true)) {
    PyErr_Clear();
    if (!numpy.empty())
      throw bad_input(
          fmt::format("input '{}' of a sample has elements of type {}, which cannot be taken over", name, numpy),
          "save samples as test_data_set_*/input_N.pb, or give arrays of numbers");
    throw bad_input(fmt::format("input '{}' of a sample is {}, which is not an array in this computer's memory", name,
                                nb::type_name(value.type()).c_str()),
                    "give numpy arrays, or what has __dlpack__ (a tensor: detached and on the CPU)");
  }
  const auto type = is_bfloat16 ? ElementType::bfloat16 : element_type(array.dtype());
  if (!type) throw bad_input(fmt::format("input '{}' of a sample has elements of an unsupported type", name));
  NamedArray out{std::move(name), *type, {}, {}, nullptr};
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) out.shape.push_back(array.shape(axis));
  out.bytes = {reinterpret_cast<const std::byte*>(array.data()), array.nbytes()};
  // The last owner may go in any thread, and then Python has to be asked in.
  out.owner = std::shared_ptr<const void>(new AnyArray(std::move(array)), [](const void* held) {
    const nb::gil_scoped_acquire python;
    delete static_cast<const AnyArray*>(held);
  });
  return out;
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
      sample->push_back(shared(nb::cast<std::string>(nb::str(name)), value));
  });
  return sample;
}

void PythonStream::rewind() {
  host_.call([&] { source_.attr("rewind")(); });
}

}  // namespace detent::python
