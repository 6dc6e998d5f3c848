#include "base/leftovers.h"

#include <unistd.h>

#include <cstddef>
#include <list>
#include <new>
#include <utility>

#include "base/paths.h"

namespace detent {

namespace fs = std::filesystem;

namespace {

// Of the whole process, since that is what ends.
struct Entry {
  fs::path path;
  pid_t owner;  // a child that was forked has no part in it
};
struct All {
  std::recursive_mutex mutex;
  std::list<Entry> entries;
};
All& all() {
  alignas(All) static std::byte place[sizeof(All)];
  static auto* const all = new (place) All;  // never destroyed: threads may outlive main()
  return *all;
}

}  // namespace

std::unique_lock<std::recursive_mutex> hold_leftovers() { return std::unique_lock(all().mutex); }

Leftover::Leftover(const fs::path& path) {
  const std::lock_guard lock(all().mutex);
  entry_ = &all().entries.emplace_back(Entry{path, ::getpid()});
  note_in_journal(kLeft, path);
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
  note_in_journal(kReleased, static_cast<const Entry*>(entry_)->path);
  all().entries.remove_if([this](const Entry& entry) { return &entry == entry_; });
  entry_ = nullptr;
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
