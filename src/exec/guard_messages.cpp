#include "exec/guard_messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"
#include "data/buffer.h"

namespace detent::exec {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

constexpr std::uint64_t kUnknownRank = ~std::uint64_t{0};
constexpr int kLookMilliseconds = 50;  // for a stop

}  // namespace

void GuardChannel::set_time(double seconds) { until_ = seconds > 0 ? now() + seconds : 0; }

void GuardChannel::write(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    const auto count = ::send(socket_, bytes, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw GuardClosed{};
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

void GuardChannel::read(void* data, std::size_t size) {
  auto* bytes = static_cast<std::byte*>(data);
  while (size > 0) {
    pollfd waiting{socket_, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, until_ > 0 || stop_.stop_possible() ? kLookMilliseconds : -1);
    if (stop_.stop_requested()) throw interrupted();
    if (ready <= 0) {
      if (until_ > 0 && now() > until_) throw GuardTimeout{};
      continue;
    }
    const auto count = ::recv(socket_, bytes, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw GuardClosed{};
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

void GuardChannel::send(std::uint64_t number) { write(&number, sizeof number); }

std::uint64_t GuardChannel::number() {
  std::uint64_t number = 0;
  read(&number, sizeof number);
  return number;
}

void GuardChannel::send(const std::string& text) {
  send(text.size());
  write(text.data(), text.size());
}

std::string GuardChannel::text() {
  std::string text(number(), '\0');
  read(text.data(), text.size());
  return text;
}

std::vector<std::int64_t> GuardChannel::numbers() {
  std::vector<std::int64_t> all(number());
  read(all.data(), all.size() * sizeof(std::int64_t));
  return all;
}

void GuardChannel::send(std::span<const data::Array> arrays) {
  send(arrays.size());
  for (const auto& array : arrays) {
    send(static_cast<std::uint64_t>(array.type));
    send(array.shape.size());
    write(array.shape.data(), array.shape.size() * sizeof(std::int64_t));
    send(array.bytes.size());
    write(array.bytes.data(), array.bytes.size());
  }
}

std::vector<data::Array> GuardChannel::arrays() {
  std::vector<data::Array> all(number());
  for (auto& array : all) {
    array.type = static_cast<onnx::DataType>(number());
    array.shape = numbers();
    const auto size = number();
    const auto buffer = data::allocate(size, "an array of a model that runs in a process of its own");
    read(buffer.bytes.data(), size);
    array.bytes = buffer.bytes.first(size);
    array.owner = buffer.memory;
  }
  return all;
}

void GuardChannel::send(std::span<const Port> ports) {
  send(ports.size());
  for (const auto& port : ports) {
    send(port.name);
    send(static_cast<std::uint64_t>(port.type.type));
    send(port.type.shape ? port.type.shape->size() : kUnknownRank);
    if (!port.type.shape) continue;
    for (const auto& dim : *port.type.shape) send(static_cast<std::uint64_t>(dim.value));
  }
}

std::vector<Port> GuardChannel::ports() {
  std::vector<Port> all(number());
  for (auto& port : all) {
    port.name = text();
    port.type.type = static_cast<onnx::DataType>(number());
    const auto rank = number();
    if (rank == kUnknownRank) continue;
    auto& dims = port.type.shape.emplace();
    for (std::uint64_t i = 0; i < rank; ++i) dims.push_back({static_cast<std::int64_t>(number()), ""});
  }
  return all;
}

}  // namespace detent::exec
