#include "fields.h"

namespace detent::python {

std::string text_of(nb::handle value) {
  constexpr std::size_t kLimit = 80;
  auto text = nb::cast<std::string>(nb::repr(value));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.size() > kLimit ? text.substr(0, kLimit) + "..." : text;
}

}  // namespace detent::python
