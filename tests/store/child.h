// Work in a process of its own, with a failpoint set: the disabled tests named SpoolChild do the work, others start
// them.
#pragma once

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace detent::store::test {

struct ChildEnd {
  bool killed = false;
  int exit_code = 0;
};

/// Runs the test SpoolChild.DISABLED_`work` in `directory` with $DETENT_FAILPOINT set, and waits for its end.
inline ChildEnd run_child(const std::string& work, const std::filesystem::path& directory, const std::string& failpoint,
                          const std::string& access) {
  std::vector<std::string> words = {"test_store", "--gtest_also_run_disabled_tests",
                                    "--gtest_filter=SpoolChild.DISABLED_" + work, "--gtest_brief=1"};
  std::vector<std::string> settings = {"DETENT_FAILPOINT=" + failpoint, "SPOOL_DIRECTORY=" + directory.string(),
                                       "SPOOL_ACCESS=" + access};
  for (char** each = environ; *each != nullptr; ++each) settings.emplace_back(*each);
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (std::string& text : strings) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  pid_t pid = 0;
  ChildEnd end{false, -1};
  if (::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers(words).data(), pointers(settings).data()) != 0) {
    return end;
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  end.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  end.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return end;
}

inline std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

inline std::string text_in(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace detent::store::test
