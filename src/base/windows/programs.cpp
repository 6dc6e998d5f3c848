// The process and its console, as the headers in posix/ declare them.
#include <windows.h>

#include <io.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/windows/encoding.h"

namespace {

using detent::windows::fail;

// Signals that have come and were not taken. Never destroyed: the system's thread may come at any time.
struct Waiting {
  std::mutex mutex;
  std::condition_variable came;
  sigset_t signals = 0;
};
Waiting& waiting() {
  static auto* const waiting = new Waiting;
  return *waiting;
}

void send(int number) {
  const std::lock_guard lock(waiting().mutex);
  waiting().signals |= sigset_t{1} << number;
  waiting().came.notify_all();
}

// In a thread of the system's. Where a console is closed the process ends when this returns.
BOOL WINAPI on_console_event(DWORD event) {
  const bool by_key = event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT;
  send(by_key ? SIGINT : SIGTERM);
  if (!by_key) ::Sleep(INFINITE);
  return TRUE;
}

}  // namespace

int detent_sigmask() {
  static const bool done = ::SetConsoleCtrlHandler(on_console_event, TRUE) != 0;
  return done ? 0 : EINVAL;
}

int detent_wake(int number) {
  send(number);
  return 0;
}

int sigtimedwait(const sigset_t* set, siginfo_t* info, const struct timespec* time) {
  std::unique_lock lock(waiting().mutex);
  const auto has_come = [&] { return (waiting().signals & *set) != 0; };
  if (time == nullptr) {
    waiting().came.wait(lock, has_come);
  } else {
    const auto patience = std::chrono::seconds(time->tv_sec) + std::chrono::nanoseconds(time->tv_nsec);
    if (!waiting().came.wait_for(lock, patience, has_come)) return fail(EAGAIN);
  }
  int number = 0;
  while (((waiting().signals & *set) >> number & 1U) == 0) ++number;
  waiting().signals &= ~(sigset_t{1} << number);
  if (info != nullptr) info->si_signo = number;
  return number;
}

int kill(int process, int number) {
  if (number != SIGKILL || process != ::getpid()) return fail(EINVAL);
  ::TerminateProcess(::GetCurrentProcess(), 128 + SIGKILL);
  return fail();
}

long sysconf(int name) {
  SYSTEM_INFO info{};
  ::GetSystemInfo(&info);
  if (name == _SC_PAGESIZE) return static_cast<long>(info.dwPageSize);
  if (name == _SC_AVPHYS_PAGES) {
    MEMORYSTATUSEX memory{};
    memory.dwLength = sizeof memory;
    if (::GlobalMemoryStatusEx(&memory) != 0) return static_cast<long>(memory.ullAvailPhys / info.dwPageSize);
  }
  return fail(EINVAL);
}

int sched_getaffinity(int, unsigned long long, cpu_set_t* set) {
  DWORD_PTR of_process = 0, of_system = 0;
  if (::GetProcessAffinityMask(::GetCurrentProcess(), &of_process, &of_system) == 0) return fail();
  set->processors = of_process;
  return 0;
}

int gethostname(char* name, std::size_t size) {
  auto length = static_cast<DWORD>(size);
  return ::GetComputerNameA(name, &length) != 0 ? 0 : fail();
}

int gettid() { return static_cast<int>(::GetCurrentThreadId()); }

void pause() {
  for (;;) ::Sleep(INFINITE);
}

int setenv(const char* name, const char* value, int overwrite) {
  if (overwrite == 0 && ::getenv(name) != nullptr) return 0;
  return ::_putenv_s(name, value) == 0 ? 0 : fail(ENOMEM);
}

int unsetenv(const char* name) { return ::_putenv_s(name, "") == 0 ? 0 : fail(EINVAL); }

int ioctl(int fd, int request, winsize* size) {
  CONSOLE_SCREEN_BUFFER_INFO info{};
  const auto console = reinterpret_cast<HANDLE>(::_get_osfhandle(fd));
  if (request != TIOCGWINSZ || ::GetConsoleScreenBufferInfo(console, &info) == 0) return fail(ENOTTY);
  size->ws_row = static_cast<unsigned short>(info.srWindow.Bottom - info.srWindow.Top + 1);
  size->ws_col = static_cast<unsigned short>(info.srWindow.Right - info.srWindow.Left + 1);
  return 0;
}
