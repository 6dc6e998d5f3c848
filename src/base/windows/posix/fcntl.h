// Of <fcntl.h>: what MinGW-w64 lacks. Files are read and written byte for byte, names are UTF-16, and what is open can
// be renamed and removed, as on Linux.
#pragma once
#include_next <fcntl.h>

#include <sys/types.h>

// Bits that the C library does not use, but for the first.
#define O_CLOEXEC 0x00000080  // its O_NOINHERIT
#define O_NONBLOCK 0          // no name of a file leads to what would have to be waited for
#define O_NOFOLLOW 0x01000000
#define O_DIRECTORY 0x02000000
#define O_DIRECT 0x04000000  // open() refuses these two with EINVAL, as file systems of Linux may
#define O_TMPFILE 0x08000000
#define POSIX_FADV_WILLNEED 3
#define POSIX_FADV_DONTNEED 4
#define FALLOC_FL_KEEP_SIZE 1
#define FALLOC_FL_PUNCH_HOLE 2
#define SYNC_FILE_RANGE_WRITE 2
#define AT_FDCWD (-100)
#define F_GETFD 1
#define F_DUPFD_CLOEXEC 2

int open(const wchar_t* path, int flags, int mode = 0);
/// Below what the folder is called by now.
int openat(int folder, const wchar_t* name, int flags, int mode = 0);
int fcntl(int fd, int command, int argument = 0);
/// EOPNOTSUPP: as on file systems of Linux that can neither set room aside nor make holes.
int fallocate(int fd, int mode, off_t from, off_t size);
/// Advice, which is not passed on.
inline int posix_fadvise(int, off_t, off_t, int) { return 0; }
inline int sync_file_range(int, off_t, off_t, unsigned) { return 0; }
