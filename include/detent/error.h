// The exception that detent throws. Every failure that a user can meet is an Error with a message of a single line.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace detent {

enum class ErrorKind {
  usage,        // the command line or an option is wrong
  bad_input,    // the model or the data is wrong
  resource,     // out of memory, disk or budget
  device,       // a GPU, driver or runtime library is missing or failed
  interrupted,  // the user asked to stop
  internal,     // a bug in detent
};

/// `what()` says what is wrong and where (file, node, tensor, sample); `hint()` says what to change and may be empty.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string hint = {})
      : std::runtime_error(message), kind_(kind), hint_(std::move(hint)) {}

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& hint() const noexcept { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

/// The process exit code of a kind: 2 usage, 3 bad input, 4 resource, 5 device, 130 interrupted, 1 internal.
constexpr int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage: return 2;
    case ErrorKind::bad_input: return 3;
    case ErrorKind::resource: return 4;
    case ErrorKind::device: return 5;
    case ErrorKind::interrupted: return 130;
    case ErrorKind::internal: return 1;
  }
  return 1;
}

}  // namespace detent
