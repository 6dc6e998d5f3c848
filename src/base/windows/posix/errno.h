// Of <errno.h>: what MinGW-w64 lacks.
#pragma once
#include_next <errno.h>

#ifndef EDQUOT
#define EDQUOT 10069  // as Windows Sockets number it; no call sets it
#endif
