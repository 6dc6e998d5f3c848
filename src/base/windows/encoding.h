// Private to the layer for Windows: names in UTF-8 and UTF-16, and errors of the system as errno values.
#pragma once

#include <string>
#include <string_view>

namespace detent {
namespace windows {

std::wstring wide(std::string_view utf8);
std::string narrow(std::wstring_view utf16);

/// Sets errno by GetLastError(); returns -1.
int fail() noexcept;
int fail(int code) noexcept;
int errno_of_system(int error) noexcept;

/// The path of an open file or folder; empty, with errno, when it is not known.
std::wstring path_of(int fd);
/// The file that an address was loaded from; empty when it is not known.
std::wstring file_with(const void* address);

}  // namespace windows
}  // namespace detent
