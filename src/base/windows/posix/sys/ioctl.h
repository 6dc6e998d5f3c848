// How wide a terminal is, as <sys/ioctl.h> has it.
#pragma once

#define TIOCGWINSZ 1
struct winsize {
  unsigned short ws_row, ws_col;
};
int ioctl(int fd, int request, winsize* size);
