// Of <unistd.h>, <stdlib.h> and <stdio.h>: what MinGW-w64 lacks, and names of files in UTF-16.
#pragma once
#include_next <unistd.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include <cstddef>

#define _SC_PAGESIZE 1
#define _SC_AVPHYS_PAGES 2
#define _SC_LEVEL3_CACHE_SIZE 3  // not known
#define SEEK_DATA 3              // lseek() refuses it
#ifndef X_OK
#define X_OK 0
#endif

/// At most 1 GiB of it at once: the C library counts in 32 bits.
inline ssize_t write(int fd, const void* from, std::size_t size) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return _write(fd, from, static_cast<unsigned>(size < kMost ? size : kMost));
}
int fsync(int fd);
inline int fdatasync(int fd) { return fsync(fd); }
ssize_t pread(int fd, void* to, std::size_t size, off_t at);
ssize_t pwrite(int fd, const void* from, std::size_t size, off_t at);
long sysconf(int name);
int unlink(const wchar_t* path);
int rmdir(const wchar_t* path);
int access(const wchar_t* path, int mode);
/// In the place of a file that is there, also of one that is open.
int rename(const wchar_t* from, const wchar_t* to);
inline int geteuid() { return 0; }  // whom a file belongs to is not looked at: see <sys/stat.h>
int gettid();
[[noreturn]] void pause();  // for ever: no signal has a handler
/// Names in UTF-8.
int mkostemp(char* name, int flags);
char* mkdtemp(char* name);
/// EOPNOTSUPP: a file system cannot be told to bring all to the disk.
int syncfs(int fd);
int gethostname(char* name, std::size_t size);
int setenv(const char* name, const char* value, int overwrite);
int unsetenv(const char* name);
