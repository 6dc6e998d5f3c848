// Of <sys/resource.h>: times of this process, and the limit of open files, which is fixed.
#pragma once
#include <sys/time.h>

#define RLIMIT_NOFILE 7
struct rlimit {
  unsigned long long rlim_cur, rlim_max;
};
inline int getrlimit(int, rlimit*) { return -1; }
inline int setrlimit(int, const rlimit*) { return -1; }
