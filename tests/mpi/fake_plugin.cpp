// A plugin without MPI, for what the real one does not do on request: $FAKE_MPI names the fault.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "mpi/interface.h"

namespace {

bool fault(std::string_view name) {
  const char* chosen = std::getenv("FAKE_MPI");
  return chosen != nullptr && chosen == name;
}

int start(int* rank, int* size) {
  *rank = fault("last") ? 1 : 0;
  *size = fault("alone") ? 1 : 2;
  return fault("start") ? 7 : 0;
}
int send(const void*, int, int) { return fault("send") ? 7 : 0; }
int receive(void* bytes, int count, int) {
  std::fill_n(static_cast<char*>(bytes), count, '\0');
  return fault("receive") ? 7 : 0;
}
int arrived(int, int* yes) {
  *yes = fault("silence") ? 0 : 1;
  return fault("arrived") ? 7 : 0;
}
int finish() {
  std::puts("finished");
  return 0;
}
void abort_all(int) { std::puts("aborted"); }
void error_text(int code, char* text, int capacity) {
  std::snprintf(text, static_cast<std::size_t>(capacity), "cable %d is cut", code);
}

constexpr detent::mpi::Calls kCalls{start, send, receive, arrived, finish, abort_all, error_text};

}  // namespace

extern "C" const detent::mpi::Calls* detent_mpi(int version) {
  return version == detent::mpi::kInterfaceVersion && !fault("version") ? &kCalls : nullptr;
}
