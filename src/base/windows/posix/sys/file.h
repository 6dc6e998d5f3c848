// Locks of whole files, as <sys/file.h> has them.
#pragma once

#define LOCK_EX 2
#define LOCK_NB 4

/// Only both flags together. Held until the descriptor is closed; it keeps nobody from reading or writing. EWOULDBLOCK
/// where another has it, ENOTSUP for a folder.
int flock(int fd, int operation);
