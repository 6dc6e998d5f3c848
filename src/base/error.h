// Errors: what they are, which of them are a fault of the machine, and points at which tests let calls fail.
#pragma once

#include <cerrno>
#include <exception>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>

#include "detent/error.h"

namespace detent {

// Short spellings for throwing: `throw bad_input(fmt::format(...), "what to change");`

inline Error usage_error(const std::string& what, std::string hint = {}) {
  return {ErrorKind::usage, what, std::move(hint)};
}
inline Error bad_input(const std::string& what, std::string hint = {}) {
  return {ErrorKind::bad_input, what, std::move(hint)};
}
inline Error resource_error(const std::string& what, std::string hint = {}) {
  return {ErrorKind::resource, what, std::move(hint)};
}
inline Error device_error(const std::string& what, std::string hint = {}) {
  return {ErrorKind::device, what, std::move(hint)};
}
inline Error internal_error(const std::string& what) { return {ErrorKind::internal, what}; }
inline Error interrupted() { return {ErrorKind::interrupted, "interrupted"}; }

/// The text of an errno value ("No such file or directory"), safe to call from any thread.
inline std::string errno_text(int code) { return std::generic_category().message(code); }

/// The Error of a system call that failed with the errno `code`. Where the machine is at fault (out of descriptors,
/// memory, threads or disk space, a broken disk) it is resource, with a hint of its own; else `otherwise`, with `hint`.
/// "WHAT: No such file or directory".
Error failed_call(int code, const std::string& what, ErrorKind otherwise, const std::string& hint = {});

/// Whether the machine is at fault for this errno, and not what was asked for.
bool is_machine_fault(int code) noexcept;

/// The errno value of what a call of std::filesystem failed with.
int errno_of(const std::error_code& failed) noexcept;

/// Any exception as an Error: those of the standard library that stand for a failed call of the system or for memory
/// that is used up as what they are, all others as internal.
Error as_error(const std::exception_ptr& thrown);

// What a build for Windows leaves out.

inline Error unavailable(const std::string& what) {
  return usage_error(what + " is not available on Windows", "docs/portability.md tells what is");
}

/// Does nothing unless $DETENT_FAILPOINT names this place: "NAME=kill" ends the process as SIGKILL does, "NAME=crash"
/// as a fault of memory does, "NAME=stop" stops it until SIGCONT comes, "NAME=hang" sleeps for a minute, "NAME=nap" for
/// a second, "NAME=slow" for 20 milliseconds each time, "NAME=ENOSPC" (or EIO, ENOMEM) makes it return that errno, else
/// it returns 0; "NAME=kill@3" waits for the third time. "NAME=wait" sleeps until a stop is requested of `stop`.
/// Callers turn an errno into the error that the real one would give.
int failpoint(const char* name, const std::stop_token& stop = {}) noexcept;

}  // namespace detent
