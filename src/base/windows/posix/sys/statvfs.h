// Room on a disk, as <sys/statvfs.h> has it.
#pragma once

struct statvfs {
  unsigned long long f_bavail, f_frsize;
};
int statvfs(const wchar_t* folder, struct statvfs* status);
