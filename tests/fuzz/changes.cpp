#include "fuzz/changes.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace detent::fuzz {

std::size_t longest(const Target& target) {
  constexpr std::size_t kOfMessages = 8192, kOfOthers = 2048;
  return target.kinds.empty() && target.name != "spool" ? kOfOthers : kOfMessages;
}

std::string changed_by_fields(const Target& target, std::string_view input, std::string_view other,
                              std::size_t max_size, std::uint32_t seed, const ByteMutator& change) {
  const std::size_t prefix = std::min(target.prefix, input.size());
  const auto& kinds = target.kinds;
  const auto* kind = kinds[prefix == 0 ? 0 : static_cast<std::uint8_t>(input.front()) % kinds.size()];
  std::string out(input.substr(0, prefix));
  input.remove_prefix(prefix);
  other.remove_prefix(std::min(target.prefix, other.size()));
  return out += mutated(input, other, *kind, max_size - prefix, seed, change);
}

std::string Changes::next() {
  const std::size_t max_size = longest(target_);
  const std::string_view input = any().substr(0, max_size);
  const ByteMutator change = [this](std::string bytes, std::size_t max) {
    return changed_bytes(std::move(bytes), max);
  };
  const bool by_fields = !target_.kinds.empty() && input.size() > target_.prefix && below(16) != 0;
  if (!by_fields) return changed_bytes(std::string(input), max_size);
  return changed_by_fields(target_, input, any(), max_size, static_cast<std::uint32_t>(random_()), change);
}

std::string Changes::changed_bytes(std::string bytes, std::size_t max_size) {
  for (std::size_t left = 1 + below(4); left > 0; --left) change_once(bytes);
  bytes.resize(std::min(bytes.size(), max_size));
  return bytes;
}

void Changes::change_once(std::string& bytes) {
  const std::size_t at = below(bytes.size() + 1), count = std::min(1 + below(16), bytes.size() - at);
  switch (below(7)) {
    case 0: bytes.erase(at, count); break;
    case 1: bytes.insert(at, bytes.substr(at, count)); break;
    case 2: bytes.insert(at, 1 + below(8), static_cast<char>(random_())); break;
    case 3: {
      const std::string_view other = any();
      const std::size_t from = below(other.size() + 1);
      bytes.replace(at, below(2) == 0 ? count : 0, other.substr(from, 1 + below(64)));
      break;
    }
    case 4: write_number(bytes); break;
    case 5:
      if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
      break;
    default:
      if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
  }
}

// Over what stands there, in any of the usual widths.
void Changes::write_number(std::string& bytes) {
  static constexpr std::array<std::uint64_t, 12> kNumbers{
      0, 1, 2, 127, 128, 255, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1ULL << 62, ~std::uint64_t{0}};
  const std::uint64_t number = kNumbers[below(kNumbers.size())];
  const std::size_t width = std::size_t{1} << below(4);
  if (bytes.size() < width) return;
  std::memcpy(bytes.data() + below(bytes.size() - width + 1), &number, width);
}

}  // namespace detent::fuzz
