// A plugin that plays the other of two ranks: it answers as the protocol asks (shim/ranks.cpp), with the messages of a
// list, and is gone after the last of them.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "mpi/interface.h"

namespace {

constexpr int kGone = 7;

int own_rank = 0;
std::vector<std::string> messages;
std::size_t next = 0;      // of the messages
std::size_t sent = 0;      // bytes of it
bool announced = false;    // it
bool go_is_due = false;    // for what this process announced
std::uint64_t coming = 0;  // bytes that it then sends

int start(int* rank, int* size) {
  *rank = own_rank;
  *size = 2;
  return 0;
}

int send(const void* bytes, int count, int) {
  if (coming > 0 && !go_is_due) {
    coming -= static_cast<std::uint64_t>(count);
  } else if (count == sizeof coming) {
    std::memcpy(&coming, bytes, sizeof coming);
    go_is_due = true;
  }
  return 0;
}

int receive(void* bytes, int count, int) {
  if (go_is_due || (!announced && count == 1)) {  // or it stands at a barrier
    std::memset(bytes, 1, static_cast<std::size_t>(count));
    go_is_due = false;
    return 0;
  }
  if (next == messages.size()) return kGone;
  const auto& message = messages[next];
  if (!announced) {
    const std::uint64_t size = message.size();
    std::memcpy(bytes, &size, sizeof size);
    announced = true;
    sent = 0;
  } else {
    std::memcpy(bytes, message.data() + sent, static_cast<std::size_t>(count));
    sent += static_cast<std::size_t>(count);
  }
  if (sent == message.size()) {
    announced = false;
    ++next;
  }
  return 0;
}

int arrived(int, int* yes) {
  *yes = 1;
  return 0;
}
int finish() { return 0; }
void abort_all(int) {}
void error_text(int, char* text, int capacity) {
  std::snprintf(text, static_cast<std::size_t>(capacity), "it is gone");
}

constexpr detent::mpi::Calls kCalls{start, send, receive, arrived, finish, abort_all, error_text};

}  // namespace

extern "C" void detent_peer(int rank, const std::vector<std::string>* says) {
  own_rank = rank;
  messages = *says;
  next = sent = coming = 0;
  announced = go_is_due = false;
}

extern "C" const detent::mpi::Calls* detent_mpi(int) { return &kCalls; }
