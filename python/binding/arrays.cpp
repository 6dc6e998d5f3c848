#include "arrays.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "fields.h"

namespace detent::python {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

// Numbers of DLPack's kinds of types; nanobind names only some.
constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6;

struct Known {
  std::uint8_t code, bits;
  ElementType type;
};
constexpr Known kKnown[] = {
    {kFloat, 32, ElementType::float32},   {kFloat, 64, ElementType::float64}, {kFloat, 16, ElementType::float16},
    {kBfloat, 16, ElementType::bfloat16}, {kInt, 8, ElementType::int8},       {kInt, 16, ElementType::int16},
    {kInt, 32, ElementType::int32},       {kInt, 64, ElementType::int64},     {kUint, 8, ElementType::uint8},
    {kUint, 16, ElementType::uint16},     {kUint, 32, ElementType::uint32},   {kUint, 64, ElementType::uint64},
    {kBool, 8, ElementType::boolean}};

std::optional<ElementType> element_type(nb::dlpack::dtype type) {
  for (const auto& known : kKnown) {
    if (known.code == type.code && known.bits == type.bits && type.lanes == 1) return known.type;
  }
  return std::nullopt;
}

// None where there is no such attribute. What else is raised stays: an attribute may be Python code, amid which Ctrl-C
// comes, and nb::getattr() with a default would take that for a missing one.
nb::object attribute_or_none(nb::handle of, const char* name) {
  if (PyObject* found = PyObject_GetAttrString(of.ptr(), name)) return nb::steal(found);
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) nb::raise_python_error();
  PyErr_Clear();
  return nb::none();
}

// The name of a numpy array's type: "bfloat16" of those of the package ml_dtypes, which no protocol passes on.
std::string numpy_type(nb::handle value) {
  const nb::object name = attribute_or_none(attribute_or_none(value, "dtype"), "name");
  return nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : std::string();
}

}  // namespace

NamedArray shared(std::string name, nb::handle value, const std::string& what) {
  AnyArray array;
  const auto numpy = numpy_type(value);
  const bool is_bfloat16 = numpy == "bfloat16" && nb::hasattr(value, "view");
  const nb::object given = is_bfloat16 ? value.attr("view")("uint16") : nb::borrow(value);
  if (!nb::try_cast<AnyArray>(given, array, true)) {
    PyErr_Clear();
    if (!numpy.empty())
      throw bad_input(fmt::format("{} has elements of type {}, which cannot be taken over", what, numpy),
                      "save samples as test_data_set_*/input_N.pb, or give arrays of numbers");
    throw bad_input(fmt::format("{} is {}, which is not an array in this computer's memory", what,
                                nb::type_name(value.type()).c_str()),
                    "give numpy arrays, or what has __dlpack__ (a tensor: detached and on the CPU)");
  }
  const auto type = is_bfloat16 ? ElementType::bfloat16 : element_type(array.dtype());
  if (!type) throw bad_input(fmt::format("{} has elements of an unsupported type", what));
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

nb::object to_numpy(const NamedArray& array) {
  Known known{kUint, 16, array.type};  // which numpy does not know itself
  for (const auto& entry : kKnown) {
    if (entry.type == array.type && entry.type != ElementType::bfloat16) known = entry;
  }
  std::vector<std::size_t> shape(array.shape.begin(), array.shape.end());
  const nb::capsule owner(new std::shared_ptr<const void>(array.owner),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<const void>*>(held); });
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(array.bytes.data(), shape.size(), shape.data(), owner, nullptr,
                                                 {known.code, known.bits, 1}));
}

}  // namespace detent::python
