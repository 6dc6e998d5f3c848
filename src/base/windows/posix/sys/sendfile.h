// Copies between files, as <sys/sendfile.h> has them.
#pragma once
#include <sys/types.h>

#include <cstddef>

/// Copies up to a piece from `*from_at` on, which moves, to the other file's position.
ssize_t sendfile(int to, int from, off_t* from_at, std::size_t size);
