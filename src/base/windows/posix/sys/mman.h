// Mapped files and pages of memory, as <sys/mman.h> has them.
#pragma once
#include <sys/types.h>

#include <cstddef>

#define PROT_READ 1
#define PROT_WRITE 2
#define MAP_PRIVATE 2
#define MAP_ANONYMOUS 0x20
#define MAP_FAILED (reinterpret_cast<void*>(-1))
#define MADV_DONTNEED 4
#define MADV_HUGEPAGE 14

/// A file from its beginning, read-only; or pages of zeros (MAP_ANONYMOUS).
void* mmap(void* address, std::size_t size, int protection, int flags, int fd, off_t offset);
/// Pages of memory can be given back in parts, a file as a whole.
int munmap(void* address, std::size_t size);
/// Does nothing: Windows gives back the pages of a file when it needs them.
inline int madvise(void*, std::size_t, int) { return 0; }
