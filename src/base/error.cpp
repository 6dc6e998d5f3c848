#include "base/error.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>
#include <thread>

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

namespace {

struct Setting {
  std::string place;
  std::string action;
  long at = 1;
};

Setting read_setting() {
  const char* text = std::getenv("DETENT_FAILPOINT");
  if (text == nullptr) return {};
  const std::string_view all(text);
  const auto equals = all.find('=');
  if (equals == std::string_view::npos) return {};
  Setting setting{std::string(all.substr(0, equals)), std::string(all.substr(equals + 1)), 1};
  if (const auto at = setting.action.find('@'); at != std::string::npos) {
    setting.at = std::strtol(setting.action.c_str() + at + 1, nullptr, 10);
    setting.action.resize(at);
  }
  return setting;
}

}  // namespace

int failpoint(const char* name, const std::stop_token& stop) noexcept {
  static const Setting setting = read_setting();
  static std::atomic<long> seen = 0;
  if (setting.place.empty() || setting.place != name) return 0;
  if (setting.action == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (++seen != setting.at) return 0;
  if (setting.action == "kill") ::kill(::getpid(), SIGKILL);
  if (setting.action == "crash") std::raise(SIGSEGV);
  if (setting.action == "stop") std::raise(SIGSTOP);
  if (setting.action == "hang") std::this_thread::sleep_for(std::chrono::minutes(1));
  if (setting.action == "nap") std::this_thread::sleep_for(std::chrono::seconds(1));
  if (setting.action == "wait") {
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (setting.action == "ENOSPC") return ENOSPC;
  if (setting.action == "EIO") return EIO;
  if (setting.action == "ENOMEM") return ENOMEM;
  return 0;
}

}  // namespace detent
