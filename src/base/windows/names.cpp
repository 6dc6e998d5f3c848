// Names in UTF-8. The C++ library makes wide names of a path's bytes, and back, by these two calls of the C library,
// which knows no locale with UTF-8; the linker puts these in their place (--wrap, in CMakeLists.txt).
// Characters beyond U+FFFF are refused: they would be two wide ones.
#include <cerrno>
#include <cstddef>
#include <cwchar>

extern "C" std::size_t __wrap_mbrtowc(wchar_t* to, const char* from, std::size_t size, std::mbstate_t* state);
extern "C" std::size_t __wrap_wcrtomb(char* to, wchar_t from, std::mbstate_t* state);

namespace {

constexpr auto kWrong = static_cast<std::size_t>(-1), kTooShort = static_cast<std::size_t>(-2);

std::size_t wrong() {
  errno = EILSEQ;
  return kWrong;
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

}  // namespace

std::size_t __wrap_mbrtowc(wchar_t* to, const char* from, std::size_t size, std::mbstate_t*) {
  if (from == nullptr) return 0;
  if (size == 0) return kTooShort;
  const auto first = static_cast<unsigned char>(*from);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                                                             : 0;
  if (length == 0) return wrong();
  unsigned code = length == 1 ? first : first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i >= size) return kTooShort;
    if (!continues(from[i])) return wrong();
    code = code << 6 | (static_cast<unsigned char>(from[i]) & 0x3FU);
  }
  if ((length == 3 && code < 0x800) || (code >= 0xD800 && code < 0xE000)) return wrong();
  if (to != nullptr) *to = static_cast<wchar_t>(code);
  return code == 0 ? 0 : length;
}

std::size_t __wrap_wcrtomb(char* to, wchar_t from, std::mbstate_t*) {
  if (to == nullptr) return 1;
  const unsigned code = from;
  if (code < 0x80) {
    *to = static_cast<char>(code);
    return 1;
  }
  if (code >= 0xD800 && code < 0xE000) return wrong();
  std::size_t length = 0;
  if (code >= 0x800) {
    to[length++] = static_cast<char>(0xE0U | code >> 12);
    to[length++] = static_cast<char>(0x80U | (code >> 6 & 0x3FU));
  } else {
    to[length++] = static_cast<char>(0xC0U | code >> 6);
  }
  to[length++] = static_cast<char>(0x80U | (code & 0x3FU));
  return length;
}
