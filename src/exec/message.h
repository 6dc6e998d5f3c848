// Private to exec/: what the runtime says, made fit for users.
#pragma once

#include <string>

namespace detent::exec {

/// Its messages carry source paths and line breaks; users need one line.
std::string one_line(const std::string& text);

}  // namespace detent::exec
