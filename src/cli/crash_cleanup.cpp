#include "cli/crash_cleanup.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "base/leftovers.h"
#include "cli/faults.h"
#include "cli/output/output.h"
#include "detent/error.h"
#include "run/command.h"

namespace detent::cli {
namespace {

std::atomic<bool> allocation_failed = false;

// Called by operator new before it throws: where an exception cannot be seen any more, this is.
void note_no_memory() {
  allocation_failed = true;
  throw std::bad_alloc();
}

bool memory_has_run_out() noexcept {
  if (allocation_failed) return true;
  constexpr std::size_t kSome = std::size_t{64} << 20;
  void* block = ::mmap(nullptr, kSome, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return true;
  ::munmap(block, kSome);
  return false;
}

[[noreturn]] void end_by_terminate() noexcept {
  static std::atomic<pid_t> first = 0;
  if (pid_t none = 0; !first.compare_exchange_strong(none, ::gettid())) {
    if (none == ::gettid()) std::abort();
    for (;;) ::pause();  // another thread is at it
  }
  run::kill_command();
  remove_leftovers();
  std::string_view line = "detent: error: internal error: std::terminate() was called; please report it\n";
  ErrorKind kind = ErrorKind::internal;
  constexpr std::string_view kNoMemory =
      "detent: error: out of memory, in a place that cannot be left; give smaller samples, or --batch-size\n";
  constexpr std::string_view kNoThread =
      "detent: error: cannot start a thread; raise the limit of processes (ulimit -u), or give fewer --threads\n";
  const auto set = [&](std::string_view text) {
    line = text;
    kind = ErrorKind::resource;
  };
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
    if (memory_has_run_out()) set(kNoMemory);
  } catch (const std::bad_alloc&) {
    set(kNoMemory);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::not_enough_memory) set(kNoMemory);
    if (e.code() == std::errc::resource_unavailable_try_again) set(kNoThread);
  } catch (...) {
    if (memory_has_run_out()) set(kNoMemory);
  }
  say_raw(line);
  ::_exit(exit_code(kind));
}

}  // namespace

void say_raw(std::string_view text) noexcept {
  for (const int fd : {STDERR_FILENO, STDOUT_FILENO}) {
    if (::write(fd, text.data(), text.size()) >= 0) return;
  }
}

void clean_up_at_crash() {
  std::set_terminate(end_by_terminate);
  std::set_new_handler(note_no_memory);
  explain_faults();
}

}  // namespace detent::cli
