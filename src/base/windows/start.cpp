#include "base/start.h"

#include <windows.h>

#include <fcntl.h>
#include <io.h>
#include <shellapi.h>
#include <stdlib.h>

#include "base/windows/encoding.h"

namespace detent {

void open_standard_descriptors() noexcept {
  for (const int fd : {0, 1, 2}) {
    if (::_get_osfhandle(fd) < 0 && ::_open("NUL", _O_RDWR) != fd) ::_exit(1);
    ::_setmode(fd, _O_BINARY);
    const auto console = reinterpret_cast<HANDLE>(::_get_osfhandle(fd));
    DWORD mode = 0;
    if (fd > 0 && ::GetConsoleMode(console, &mode) != 0)
      ::SetConsoleMode(console, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
  }
  _fmode = _O_BINARY;  // of what the C++ library opens
  ::SetConsoleOutputCP(CP_UTF8);
}

std::vector<std::string> command_line(int argc, char** argv) {
  int count = 0;
  wchar_t** const words = ::CommandLineToArgvW(::GetCommandLineW(), &count);
  if (words == nullptr) return {argv, argv + argc};
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(windows::narrow(words[i]));
  ::LocalFree(words);
  return all;
}

}  // namespace detent
