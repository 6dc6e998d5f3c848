// Arguments and environment of a process that is about to be started, as posix_spawn() takes them.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

namespace detent {

/// Ends with a null pointer; valid as long as `texts` are.
inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (auto& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// That of this process and one entry more, "NAME=VALUE".
inline std::vector<std::string> environment_with(std::string entry) {
  std::vector<std::string> all;
  for (char** e = environ; *e != nullptr; ++e) all.emplace_back(*e);
  all.push_back(std::move(entry));
  return all;
}

}  // namespace detent
