#include "searching/page.h"

namespace detent::searching {

// The page before and after its data; CMake writes both of front.html.
extern const std::string_view front_page_head;
extern const std::string_view front_page_tail;

std::string page(std::string_view json) {
  std::string text(front_page_head);
  text += json;
  text += front_page_tail;
  return text;
}

}  // namespace detent::searching
