#include "exec/message.h"

#include "base/pattern.h"

namespace detent::exec {

std::string one_line(const std::string& text) {
  static const Pattern kNoise(R"((/[^\s:]*\.(cc|h|cpp):\d+\s+[^\n]*?\)\s?)|[\r\n]+)");
  std::string line = kNoise.replace_all(text, " ");
  constexpr std::size_t kLongest = 400;
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "…";
  return line;
}

}  // namespace detent::exec
