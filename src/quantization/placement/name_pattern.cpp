#include "quantization/placement/name_pattern.h"

namespace detent::quantization {

NamePattern::NamePattern(const std::string& text) : text_(text) {
  if (text.starts_with('^')) pattern_.emplace(text);
}

}  // namespace detent::quantization
