// Private to exec/: what a GuardedSession and its process say to each other, over a socket of two processes of one
// version of detent.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "exec/session.h"

namespace detent::exec {

enum class GuardMessage : std::uint64_t { hello, open, opened, run, results, ports, failed };

/// The other side is gone.
struct GuardClosed {};
/// Nothing came within the time.
struct GuardTimeout {};

/// Writes and reads numbers, texts and arrays. Throws GuardClosed, GuardTimeout and interrupted.
class GuardChannel {
 public:
  explicit GuardChannel(int socket, std::stop_token stop = {}) : socket_(socket), stop_(std::move(stop)) {}
  /// Of all that is read from now on, together; 0: no limit.
  void set_time(double seconds);

  void send(std::uint64_t number);
  void send(GuardMessage message) { send(static_cast<std::uint64_t>(message)); }
  void send(const std::string& text);
  void send(std::span<const data::Array> arrays);
  void send(std::span<const Port> ports);

  std::uint64_t number();
  GuardMessage message() { return static_cast<GuardMessage>(number()); }
  std::string text();
  std::vector<data::Array> arrays();
  std::vector<Port> ports();

 private:
  void write(const void* data, std::size_t size);
  void read(void* data, std::size_t size);
  std::vector<std::int64_t> numbers();

  int socket_;
  std::stop_token stop_;
  double until_ = 0;
};

}  // namespace detent::exec
