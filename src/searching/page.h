// The picture of a front, in a page of its own.
#pragma once

#include <string>
#include <string_view>

namespace detent::searching {

/// An HTML page that shows front.json, whose text is safe inside a script element. It asks nothing of a network.
std::string page(std::string_view json);

}  // namespace detent::searching
