#include "fields.h"

#include "base/text.h"

namespace detent::python {

std::string text_of(nb::handle value) {
  constexpr std::size_t kLimit = 80;
  const nb::object repr = nb::repr(value);
  // A path that is no UTF-8 has surrogates, which UTF-8 has not.
  const auto bytes = nb::steal<nb::bytes>(PyUnicode_AsEncodedString(repr.ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) nb::raise_python_error();
  return printable({bytes.c_str(), bytes.size()}, kLimit);
}

nb::object python_text(std::string_view text) {
  auto* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (made == nullptr) nb::raise_python_error();
  return nb::steal(made);
}

}  // namespace detent::python
