// Preloaded into Wine: asks Linux for the tile registers of AMX, which ONNX Runtime for Windows uses unasked where the
// processor has them. Linux ends programs that did not ask (arch/x86/xstate.rst).
#include <sys/syscall.h>
#include <unistd.h>

enum { kRequestPermission = 0x1023, kTileData = 18 };

__attribute__((constructor)) static void ask(void) { syscall(SYS_arch_prctl, kRequestPermission, kTileData); }
