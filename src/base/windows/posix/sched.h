// Of <sched.h>: the processors that this process may run on.
#pragma once
#include_next <sched.h>

struct cpu_set_t {
  unsigned long long processors;
};
inline void CPU_ZERO(cpu_set_t* set) { set->processors = 0; }
inline int CPU_COUNT(const cpu_set_t* set) { return __builtin_popcountll(set->processors); }
/// Of this process; of the first group of processors where a machine has more than 64.
int sched_getaffinity(int process, unsigned long long size, cpu_set_t* set);
