// Of <pthread.h>: signals, as <signal.h> has them here.
#pragma once
#include_next <pthread.h>

#include <signal.h>

#ifndef SIG_BLOCK
#define SIG_BLOCK 0
#define SIG_SETMASK 2
#endif

/// From the first call on, what ends a program in a console waits until somebody takes it.
int detent_sigmask();
/// The thread that waits for signals takes this one.
int detent_wake(int number);

#undef pthread_sigmask
inline int pthread_sigmask(int, const sigset_t*, sigset_t*) { return detent_sigmask(); }
#define pthread_kill detent_pthread_kill
inline int detent_pthread_kill(pthread_t, int number) { return detent_wake(number); }
