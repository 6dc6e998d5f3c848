// Libraries loaded at run time, as <dlfcn.h> has them.
#pragma once

#define RTLD_NOW 2
#define RTLD_LOCAL 0

void* dlopen(const char* name, int flags);
void* dlsym(void* library, const char* name);
/// Why the last of these calls of this thread failed; null where none did since it was asked.
const char* dlerror();
