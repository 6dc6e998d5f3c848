// The MPI plugin: the interface in terms of MPI. A library of its own, since the binary must start where no MPI is.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "mpi/interface.h"

namespace {

constexpr int kTag = 1;

int start(int* rank, int* size) {
  int provided = 0;  // other threads do run, but only this one calls MPI
  int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, size);
  return code;
}

// MPI's own waiting spins, and takes a core that the peer may need, or another job.
int complete(MPI_Request request) {
  using namespace std::chrono_literals;
  constexpr int kAtOnce = 1000;  // tests: a peer that runs answers within them
  auto pause = 20us;
  for (int tests = 0;; ++tests) {
    int done = 0;
    const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done != 0) return code;
    if (tests < kAtOnce) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 500us);
  }
}

int send(const void* bytes, int count, int to) {
  MPI_Request request{};
  const int code = MPI_Isend(bytes, count, MPI_BYTE, to, kTag, MPI_COMM_WORLD, &request);
  return code == MPI_SUCCESS ? complete(request) : code;
}

int receive(void* bytes, int count, int from) {
  MPI_Request request{};
  const int code = MPI_Irecv(bytes, count, MPI_BYTE, from, kTag, MPI_COMM_WORLD, &request);
  return code == MPI_SUCCESS ? complete(request) : code;
}

int arrived(int from, int* yes) { return MPI_Iprobe(from, kTag, MPI_COMM_WORLD, yes, MPI_STATUS_IGNORE); }

int finish() { return MPI_Finalize(); }

void abort_all(int exit_code) { MPI_Abort(MPI_COMM_WORLD, exit_code); }

void error_text(int code, char* text, int capacity) {
  std::string found(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, found.data(), &length) != MPI_SUCCESS) length = 0;
  const int kept = std::min(length, capacity - 1);
  std::copy_n(found.begin(), kept, text);
  text[kept] = '\0';
}

constexpr detent::mpi::Calls kCalls{start, send, receive, arrived, finish, abort_all, error_text};

}  // namespace

extern "C" __attribute__((visibility("default"))) const detent::mpi::Calls* detent_mpi(int version) {
  return version == detent::mpi::kInterfaceVersion ? &kCalls : nullptr;
}
