#include "cli/stack.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "detent/error.h"

namespace detent::cli {
namespace {

constexpr rlim_t kUsual = rlim_t{8} << 20, kLeast = rlim_t{1} << 20;

}  // namespace

void settle_stack() noexcept {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kUsual) {
    limit.rlim_cur = std::min(kUsual, limit.rlim_max);
    ::setrlimit(RLIMIT_STACK, &limit);  // holds for the thread that runs, which grows as it needs more
    if (limit.rlim_cur < kLeast) {      // no room for an exception
      constexpr std::string_view kLine =
          "detent: error: the stack is limited to less than 1 MiB; raise the limit (ulimit -s 8192)\n";
      [[maybe_unused]] const auto told = ::write(STDERR_FILENO, kLine.data(), kLine.size());
      ::_exit(exit_code(ErrorKind::resource));
    }
  }
  // Of threads, those of the runtime too: the C library has read the limit before main().
  pthread_attr_t attributes;
  if (::pthread_getattr_default_np(&attributes) != 0) return;
  if (::pthread_attr_setstacksize(&attributes, kUsual) == 0) ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace detent::cli
