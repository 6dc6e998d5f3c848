// Of <sys/stat.h>: what MinGW-w64 lacks, and names of files in UTF-16. Its own fstat() knows no numbers of files and no
// hard links. Whom a file belongs to and who may read it is in its access list, which is not looked at: all is this
// user's, and private.
#pragma once
#include_next <sys/stat.h>

#include <sys/types.h>

#include <cstdint>

#undef stat
#undef fstat
#define stat detent_stat
struct detent_stat {
  std::uint64_t st_dev, st_ino;
  unsigned st_mode, st_nlink;
  int st_uid;
  std::int64_t st_size;
};
int fstat(int fd, struct detent_stat* status);
int detent_stat(const wchar_t* path, struct detent_stat* status);
int detent_stat(const char* path, struct detent_stat* status);
int lstat(const wchar_t* path, struct detent_stat* status);
int mkdir(const wchar_t* path, int mode);
inline int fchmod(int, int) { return 0; }
