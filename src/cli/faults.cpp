#include "cli/faults.h"

#include <execinfo.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/leftovers.h"
#include "detent/error.h"
#include "run/command.h"

namespace detent::cli {
namespace {

// A line of /proc/self/maps: FROM-TO PERMISSIONS OFFSET DEVICE INODE PATH.
struct Mapping {
  std::uint64_t offset = 0;  // in the file, of the address that was asked for
  std::array<char, PATH_MAX> path{};
};

std::string_view next_word(std::string_view& line, char end) {
  const auto at = std::min(line.find(end), line.size());
  const auto word = line.substr(0, at);
  line.remove_prefix(std::min(at + 1, line.size()));
  return word;
}

std::uint64_t hexadecimal(std::string_view word) {
  std::uint64_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value, 16);
  return value;
}

bool is_mapping_of(std::uint64_t address, std::string_view line, Mapping& mapping) {
  const auto from = hexadecimal(next_word(line, '-')), to = hexadecimal(next_word(line, ' '));
  if (address < from || address >= to) return false;
  next_word(line, ' ');
  mapping.offset = hexadecimal(next_word(line, ' ')) + (address - from);
  const auto slash = line.find('/');
  if (slash == std::string_view::npos) return false;
  line.remove_prefix(slash);
  if (line.size() >= mapping.path.size()) return false;
  std::memcpy(mapping.path.data(), line.data(), line.size());
  return true;
}

// Of calls that are allowed in a handler only.
bool find_mapping(std::uint64_t address, Mapping& mapping) {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  std::array<char, PATH_MAX + 256> line{};
  std::size_t length = 0;
  char c = 0;
  bool found = false;
  while (!found && ::read(fd, &c, 1) == 1) {
    if (c == '\n') {
      found = is_mapping_of(address, {line.data(), length}, mapping);
      length = 0;
    } else if (length < line.size()) {
      line[length++] = c;
    }
  }
  ::close(fd);
  return found;
}

// The name of a file comes from outside: what could move a terminal's cursor does not reach it.
void say_name(char* name) {
  for (char* c = name; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7F) *c = '?';
  }
  say_raw(name);
}

// Runs in the thread that touched the page, in the midst of reading a file: it holds none of the locks that removing
// needs, and nothing of that takes memory.
void on_bus_error(int number, siginfo_t* info, void*) {
  static std::atomic_flag first = ATOMIC_FLAG_INIT;
  while (first.test_and_set()) ::pause();  // another thread is at it
  static Mapping mapping;
  if (!find_mapping(reinterpret_cast<std::uintptr_t>(info->si_addr), mapping)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
    return;
  }
  run::kill_command();
  remove_leftovers();
  struct stat now {};
  constexpr std::string_view kDeleted = " (deleted)";
  const bool deleted = std::string_view(mapping.path.data()).ends_with(kDeleted);
  const bool shorter =
      deleted || ::stat(mapping.path.data(), &now) != 0 || static_cast<std::uint64_t>(now.st_size) <= mapping.offset;
  say_raw("detent: error: '");
  say_name(mapping.path.data());
  say_raw(shorter ? "' became shorter while it was read; let nobody write to it during a run\n"
                  : "' cannot be read: Input/output error; check the disk\n");
  ::_exit(exit_code(shorter ? ErrorKind::bad_input : ErrorKind::resource));
}

}  // namespace

void explain_faults() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // else the C library loads what unwinds when it is first needed, and aborts without memory
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace detent::cli
