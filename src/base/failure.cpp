#include "base/failure.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>

namespace detent {
namespace {

// Of a call that failed by no fault of what was asked for; nullptr: that may be wrong.
const char* hint_for(int code) {
  switch (code) {
    case ENOSPC:
    case EDQUOT: return "free some space there, or choose another place with --output or --work-dir";
    case EFBIG: return "raise the limit of file sizes (ulimit -f), or choose another file system";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EAGAIN: return "raise the limit of processes (ulimit -u), or give fewer --threads and --workers";
    case ENOMEM: return "give smaller samples, or --batch-size";
    case EIO: return "check the disk";
    default: return nullptr;
  }
}

Error out_of_memory() { return resource_error("out of memory", "give smaller samples, or --batch-size"); }

Error of_file_system(const std::filesystem::filesystem_error& e) {
  const auto& path = e.path1();
  return failed_call(errno_of(e.code()),
                     path.empty() ? std::string("cannot use a file") : fmt::format("cannot use '{}'", path.string()),
                     ErrorKind::bad_input);
}

}  // namespace

Error failed_call(int code, const std::string& what, ErrorKind otherwise, const std::string& hint) {
  const std::string text = fmt::format("{}: {}", what, errno_text(code));
  if (const char* of_machine = hint_for(code)) return resource_error(text, of_machine);
  return {otherwise, text, hint};
}

bool is_machine_fault(int code) noexcept { return hint_for(code) != nullptr; }

Error as_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::filesystem::filesystem_error& e) {
    return of_file_system(e);
  } catch (const std::system_error& e) {
    const bool is_thread = e.code() == std::errc::resource_unavailable_try_again;
    return failed_call(errno_of(e.code()), is_thread ? "cannot start a thread" : "a call of the system failed",
                       ErrorKind::bad_input);
  } catch (const std::exception& e) {
    // Libraries with an interface in C hand on the text of what they caught.
    if (std::string_view(e.what()).find("std::bad_alloc") != std::string_view::npos) return out_of_memory();
    return internal_error(fmt::format("internal error: {}", e.what()));
  } catch (...) {
    return internal_error("internal error: an unknown exception");
  }
}

}  // namespace detent
