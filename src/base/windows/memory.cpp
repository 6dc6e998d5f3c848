// Mapped files and pages, as posix/sys/mman.h declares them.
#include <windows.h>

#include <io.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/windows/encoding.h"

namespace {

using detent::windows::fail;

void* map_file(std::size_t size, int fd) {
  const auto file = reinterpret_cast<HANDLE>(::_get_osfhandle(fd));
  const HANDLE mapping = ::CreateFileMappingW(file, nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (mapping == nullptr) return nullptr;
  void* address = ::MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, size);
  ::CloseHandle(mapping);  // the view keeps it
  return address;
}

MEMORY_BASIC_INFORMATION region_at(const char* address) {
  MEMORY_BASIC_INFORMATION region{};
  ::VirtualQuery(address, &region, sizeof region);
  return region;
}

// Addresses can be given back only all at once: when no page of theirs is in use any more.
void release_if_unused(void* allocation) {
  for (const char* at = static_cast<const char*>(allocation);;) {
    const auto region = region_at(at);
    if (region.AllocationBase != allocation) break;
    if (region.State != MEM_RESERVE) return;
    at += region.RegionSize;
  }
  ::VirtualFree(allocation, 0, MEM_RELEASE);
}

}  // namespace

void* mmap(void*, std::size_t size, int protection, int flags, int fd, off_t offset) {
  void* address = nullptr;
  if ((flags & MAP_ANONYMOUS) != 0) {
    address = ::VirtualAlloc(nullptr, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  } else if (protection == PROT_READ && offset == 0) {
    address = map_file(size, fd);
  } else {
    fail(EINVAL);
    return MAP_FAILED;
  }
  if (address != nullptr) return address;
  fail();
  return MAP_FAILED;
}

int munmap(void* address, std::size_t size) {
  char* at = static_cast<char*>(address);
  if (region_at(at).Type == MEM_MAPPED) return ::UnmapViewOfFile(address) != 0 ? 0 : fail();
  // Neighbours may have come from several calls.
  for (char* const end = at + size; at < end;) {
    const auto region = region_at(at);
    const auto bytes = std::min<std::size_t>(region.RegionSize, static_cast<std::size_t>(end - at));
    if (region.State == MEM_FREE || bytes == 0) return fail(EINVAL);
    if (region.State == MEM_COMMIT && ::VirtualFree(at, bytes, MEM_DECOMMIT) == 0) return fail();
    release_if_unused(region.AllocationBase);
    at += bytes;
  }
  return 0;
}
