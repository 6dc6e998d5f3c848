// Short spellings for throwing: `throw bad_input(fmt::format(...), "what to change");`
#pragma once

#include <string>
#include <system_error>
#include <utility>

#include "detent/error.h"

namespace detent {

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

}  // namespace detent
