#include "base/leftovers_journal.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <set>
#include <string>

#include "base/remove_tree.h"

namespace detent {
namespace {

int journal = -1;

std::string read_all(int file) {
  std::string text;
  char piece[4096];
  for (off_t at = 0;; at = static_cast<off_t>(text.size())) {
    const auto count = ::pread(file, piece, sizeof piece, at);
    if (count <= 0) return text;
    text.append(piece, static_cast<std::size_t>(count));
  }
}

}  // namespace

void keep_journal_of_leftovers(int file) noexcept { journal = file; }

// Each mark before a path, which a zero ends. In one call, so that an entry is whole whenever the process ends.
void note_in_journal(char what, const std::filesystem::path& path) noexcept {
  if (journal < 0) return;
  char mark[] = {what};
  iovec parts[] = {{mark, 1}, {const_cast<char*>(path.c_str()), path.native().size() + 1}};
  if (::writev(journal, parts, 2) < 0) return;
}

void remove_leftovers_of(int file) {
  const std::string text = read_all(file);
  std::set<std::string> left;
  for (std::size_t at = 0; at < text.size();) {
    const std::string entry = text.c_str() + at;
    at += entry.size() + 1;
    if (entry.empty()) continue;
    if (entry.front() == kLeft) left.insert(entry.substr(1));
    if (entry.front() == kReleased) left.erase(entry.substr(1));
  }
  for (const auto& path : left) remove_tree(path.c_str());
}

}  // namespace detent
