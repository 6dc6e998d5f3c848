// To be preloaded: shows the process a CPU with AVX2 and FMA, but without AVX-512, VNNI and AMX, by letting CPUID
// fault. Ends the process with 77 where the kernel or the CPU cannot do that.
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <initializer_list>

#ifndef ARCH_SET_CPUID
#define ARCH_SET_CPUID 0x1012
#endif

namespace {

constexpr int kSkipped = 77;
constexpr int kInstructionSize = 2;  // of CPUID: 0f a2

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

constexpr unsigned bits(std::initializer_list<int> positions) {
  unsigned mask = 0;
  for (const int position : positions) mask |= 1U << position;
  return mask;
}

// Leaf 7: AVX512 F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT,
// AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8. Its sub-leaf 1: AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA;
// AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16, AVX10.
void take_away(unsigned leaf, unsigned sub_leaf, Registers& r) {
  if (leaf != 7) return;
  if (sub_leaf == 0) {
    r.b &= ~bits({16, 17, 21, 26, 27, 28, 30, 31});
    r.c &= ~bits({1, 6, 11, 12, 14});
    r.d &= ~bits({2, 3, 8, 22, 23, 24, 25});
  } else if (sub_leaf == 1) {
    r.a &= ~bits({4, 5, 21, 23});
    r.d &= ~bits({4, 5, 10, 19});
  }
}

void on_fault(int signal_number, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* instruction = reinterpret_cast<const unsigned char*>(registers[REG_RIP]);
  if (instruction[0] != 0x0f || instruction[1] != 0xa2) {
    std::signal(signal_number, SIG_DFL);  // a fault of another kind: it comes again
    return;
  }
  const auto leaf = static_cast<unsigned>(registers[REG_RAX]), sub_leaf = static_cast<unsigned>(registers[REG_RCX]);
  Registers r;
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
  __cpuid_count(leaf, sub_leaf, r.a, r.b, r.c, r.d);
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
  take_away(leaf, sub_leaf, r);
  registers[REG_RAX] = r.a;
  registers[REG_RBX] = r.b;
  registers[REG_RCX] = r.c;
  registers[REG_RDX] = r.d;
  registers[REG_RIP] += kInstructionSize;
}

__attribute__((constructor)) void start() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) == 0) return;
  std::fputs("no CPUID faulting here\n", stderr);
  _exit(kSkipped);
}

}  // namespace
