#include "run/score_command.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace detent::run {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::optional<double> last_number(const std::string& text) {
  std::optional<double> last;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    double value = 0;
    const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (status == std::errc() && end == word.data() + word.size()) last = value;
  }
  return last;
}

}  // namespace

double score_by_command(const std::string& command, const std::filesystem::path& model) {
  const std::string line = command + " " + quoted(std::filesystem::absolute(model).string());
  std::string output;
  int status = 0;
  {
    std::unique_ptr<FILE, void (*)(FILE*)> pipe(::popen(line.c_str(), "r"), [](FILE*) {});
    if (!pipe) throw bad_input(fmt::format("--accuracy-command: '{}' cannot be started", command));
    char piece[4096];
    while (const std::size_t count = std::fread(piece, 1, sizeof piece, pipe.get())) output.append(piece, count);
    status = ::pclose(pipe.release());
  }
  if (status != 0) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    throw bad_input(fmt::format("--accuracy-command: '{}' ended with status {}", line, code),
                    "it gets a model's path as its last argument and prints the score");
  }
  const auto score = last_number(output);
  if (!score) {
    throw bad_input(fmt::format("--accuracy-command: '{}' printed no number", line),
                    "it gets a model's path as its last argument and prints the score");
  }
  return *score;
}

}  // namespace detent::run
