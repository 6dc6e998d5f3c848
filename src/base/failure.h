// What failures that are no Error of detent's are to a user.
#pragma once

#include <exception>
#include <string>
#include <system_error>

#include "base/error.h"

namespace detent {

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

}  // namespace detent
