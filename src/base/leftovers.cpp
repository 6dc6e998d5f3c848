#include "base/leftovers.h"
#include "base/leftovers_journal.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <list>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "base/remove_tree.h"

namespace detent {
namespace fs = std::filesystem;
namespace {

// Of the whole process, since that is what ends.
struct Entry {
  fs::path path;
  pid_t owner;  // a child that was forked has no part in it
};
struct All {
  std::mutex mutex;
  std::list<Entry> entries;
  int journal = -1;
};
All& all() {
  alignas(All) static std::byte place[sizeof(All)];
  static auto* const all = new (place) All;  // never destroyed: threads may outlive main()
  return *all;
}

constexpr char kMade = '+', kReleased = '-';  // each before a path, which a zero ends

// In one call, so that an entry is whole whenever the process ends.
void write_to_journal(char what, const fs::path& path) noexcept {
  if (all().journal < 0) return;
  char mark[] = {what};
  iovec parts[] = {{mark, 1}, {const_cast<char*>(path.c_str()), path.native().size() + 1}};
  if (::writev(all().journal, parts, 2) < 0) return;  // without memory for it, it is not told
}

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

Leftover::Leftover(const fs::path& path) {
  const std::lock_guard lock(all().mutex);
  entry_ = &all().entries.emplace_back(Entry{path, ::getpid()});
  write_to_journal(kMade, path);
}

Leftover::Leftover(Leftover&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

Leftover& Leftover::operator=(Leftover&& other) noexcept {
  if (this != &other) {
    release();
    entry_ = std::exchange(other.entry_, nullptr);
  }
  return *this;
}

void Leftover::release() noexcept {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(all().mutex);
  write_to_journal(kReleased, static_cast<const Entry*>(entry_)->path);
  all().entries.remove_if([this](const Entry& entry) { return &entry == entry_; });
  entry_ = nullptr;
}

void keep_journal_of_leftovers(int file) noexcept { all().journal = file; }

void remove_leftovers_of(int journal) {
  const std::string text = read_all(journal);
  std::set<std::string> left;
  for (std::size_t at = 0; at < text.size();) {
    const std::string entry = text.c_str() + at;
    at += entry.size() + 1;
    if (entry.empty()) continue;
    if (entry.front() == kMade) left.insert(entry.substr(1));
    if (entry.front() == kReleased) left.erase(entry.substr(1));
  }
  for (const auto& path : left) remove_tree(path.c_str());
}

void remove_leftovers() noexcept {
  constexpr int kTries = 5;  // the other threads still write
  all().mutex.lock();        // and is never unlocked, so that nothing new comes
  for (const auto& [path, owner] : all().entries) {
    if (owner != ::getpid()) continue;
    for (int i = 0; i < kTries && !remove_tree(path.c_str()); ++i) {
    }
  }
}

}  // namespace detent
