// Function attribute for hot loops: one binary, compiled for several vector widths, the widest that the machine has is
// used. Sanitizers start too late for the resolver, so they get plain code.
#pragma once

#if defined(__x86_64__) && defined(__ELF__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DETENT_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DETENT_VECTOR_CLONES
#endif
