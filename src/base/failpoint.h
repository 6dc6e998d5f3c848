// Named places where tests make a run fail or die.
#pragma once

#include <cerrno>
#include <stop_token>

namespace detent {

/// Does nothing unless $DETENT_FAILPOINT names this place: "NAME=kill" ends the process as SIGKILL does, "NAME=crash"
/// as a fault of memory does, "NAME=stop" stops it until SIGCONT comes, "NAME=hang" sleeps for a minute, "NAME=nap" for
/// a second, "NAME=slow" for 20 milliseconds each time, "NAME=ENOSPC" (or EIO, ENOMEM) makes it return that errno, else
/// it returns 0; "NAME=kill@3" waits for the third time. "NAME=wait" sleeps until a stop is requested of `stop`.
/// Callers turn an errno into the error that the real one would give.
int failpoint(const char* name, const std::stop_token& stop = {}) noexcept;

}  // namespace detent
