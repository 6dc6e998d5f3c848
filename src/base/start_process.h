// Starts a process of another program.
#pragma once

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace detent {

/// Ends with a null pointer; valid as long as `texts` are.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// In a process group of its own, which keeps Ctrl-C in a terminal from it, and with no signal blocked. Its environment
/// is that of this process and one entry more, "NAME=VALUE". `files`: what becomes of descriptors, or null. Throws
/// resource, with `what` failed.
inline pid_t start_process(const char* program, std::vector<std::string> words, std::string entry,
                           const posix_spawn_file_actions_t* files, const char* what) {
  std::vector<std::string> environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  environment.push_back(std::move(entry));
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int failed =
      ::posix_spawn(&child, program, files, &attributes, pointers_to(words).data(), pointers_to(environment).data());
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) throw failed_call(failed, what, ErrorKind::resource);
  return child;
}

}  // namespace detent
