// To be preloaded into programs for another processor that an emulator of single programs runs (qemu-user): what they
// start runs in the same emulator, also where the kernel has not been told of it (binfmt_misc). $DETENT_EMULATOR is a
// command that is given the program's path, its name (argv[0]) and its arguments. Programs of the host get no
// LD_PRELOAD, which they could not load.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::size_t kMostWords = 4096;  // on the stack: between fork() and exec() nothing may be allocated

// Read before main(), since getenv() may not be used between fork() and exec().
const char* const kEmulator = std::getenv("DETENT_EMULATOR");

bool is_for_this_processor(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  Elf64_Ehdr header{};
  const bool whole = ::read(fd, &header, sizeof header) == static_cast<ssize_t>(sizeof header);
  ::close(fd);
  return whole && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == EM_AARCH64;
}

struct Words {
  std::array<char, PATH_MAX> path;
  std::array<char*, kMostWords> arguments;
  std::array<char*, kMostWords> environment;
  const char* program;
  char* const* words;
  char* const* settings;
  bool fits = true;
};

void without_preload(char* const* environment, Words& out) {
  std::size_t count = 0;
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, "LD_PRELOAD=", 11) == 0) continue;
    if (count + 1 == kMostWords) return static_cast<void>(out.fits = false);
    out.environment[count++] = *environment;
  }
  out.environment[count] = nullptr;
  out.settings = out.environment.data();
}

void with_emulator(const char* path, char* const* arguments, Words& out) {
  const ssize_t length = ::readlink(path, out.path.data(), PATH_MAX - 1);
  if (std::strcmp(path, "/proc/self/exe") == 0 && length > 0) {
    out.path[static_cast<std::size_t>(length)] = '\0';
    path = out.path.data();
  }
  out.program = kEmulator;
  static char as[] = "--as";
  std::size_t count = 0;
  for (char* word : {const_cast<char*>(kEmulator), as, *arguments != nullptr ? *arguments++ : const_cast<char*>(path),
                     const_cast<char*>(path)})
    out.arguments[count++] = word;
  for (; *arguments != nullptr; ++arguments) {
    if (count + 1 == kMostWords) return static_cast<void>(out.fits = false);
    out.arguments[count++] = *arguments;
  }
  out.arguments[count] = nullptr;
  out.words = out.arguments.data();
}

void words_for(const char* path, char* const* arguments, char* const* environment, Words& out) {
  out.program = path;
  out.words = arguments;
  out.settings = environment;
  if (kEmulator == nullptr) return;
  without_preload(environment, out);
  if (is_for_this_processor(path)) with_emulator(path, arguments, out);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int execve(const char* path, char* const arguments[], char* const environment[]) noexcept {
  static auto* const real = next<int(const char*, char* const[], char* const[])>("execve");
  Words words;
  words_for(path, arguments, environment, words);
  if (!words.fits) return errno = E2BIG, -1;
  return real(words.program, words.words, words.settings);
}

int execv(const char* path, char* const arguments[]) noexcept { return execve(path, arguments, environ); }

int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const arguments[], char* const environment[]) {
  static auto* const real = next<int(pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*,
                                     char* const[], char* const[])>("posix_spawn");
  Words words;
  words_for(path, arguments, environment, words);
  if (!words.fits) return E2BIG;
  return real(pid, words.program, actions, attributes, words.words, words.settings);
}
}
