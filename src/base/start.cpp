#include "base/start.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace detent {

void open_standard_descriptors() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", O_RDWR) != fd) ::_exit(1);
  }
}

std::vector<std::string> command_line(int argc, char** argv) { return {argv, argv + argc}; }

}  // namespace detent
