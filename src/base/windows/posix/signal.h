// Of <signal.h>: what MinGW-w64 lacks. What ends a program in a console (Ctrl-C, Ctrl-Break, closing it, logging off)
// comes as SIGINT and SIGTERM to the thread that waits for them; the others never come.
#pragma once
#include_next <signal.h>

#include <sys/types.h>
#include <time.h>

#ifndef SIGHUP
#define SIGHUP 1
#endif
#ifndef SIGQUIT
#define SIGQUIT 3
#endif
#ifndef SIGKILL
#define SIGKILL 9
#endif
#ifndef SIGUSR1
#define SIGUSR1 10
#endif
#ifndef SIGUSR2
#define SIGUSR2 12
#endif
#ifndef SIGPIPE
#define SIGPIPE 13
#endif
#ifndef SIGALRM
#define SIGALRM 14
#endif
#ifndef SIGSTOP
#define SIGSTOP 19
#endif
#ifndef SIGXCPU
#define SIGXCPU 24
#endif
#ifndef SIGXFSZ
#define SIGXFSZ 25
#endif

typedef _sigset_t sigset_t;
struct siginfo_t {
  int si_signo;
};
struct sigaction {
  void (*sa_handler)(int);
};
/// -1: no handler can be asked for.
inline int sigaction(int, const struct sigaction*, struct sigaction*) { return -1; }

inline int sigemptyset(sigset_t* set) {
  *set = 0;
  return 0;
}
inline int sigfillset(sigset_t* set) {
  *set = static_cast<sigset_t>(-1);
  return 0;
}
inline int sigaddset(sigset_t* set, int number) {
  *set |= sigset_t{1} << number;
  return 0;
}
/// Null for `time`: for ever. -1, with EAGAIN: none came.
int sigtimedwait(const sigset_t* set, siginfo_t* info, const struct timespec* time);
/// SIGKILL, to this process alone, which ends with 128 + SIGKILL.
int kill(int process, int number);
inline int sigwaitinfo(const sigset_t* set, siginfo_t* info) { return sigtimedwait(set, info, nullptr); }

#include <pthread.h>  // which has pthread_sigmask() and pthread_kill() here
