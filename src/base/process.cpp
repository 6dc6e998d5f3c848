#include "base/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "detent/device.h"

namespace detent {
namespace {

constexpr std::chrono::duration<double> kGrace = std::chrono::seconds(5);

std::atomic<void (*)(const Error&)> end_overdue = nullptr;

}  // namespace

Deadline::Deadline(double seconds, const std::stop_token& stop, Error error)
    : error_(std::move(error)),
      outer_(stop, [this] { source_.request_stop(); }),
      waiter_(
          [this, time = std::chrono::duration<double>(seconds)](const std::stop_token& ended) { wait(ended, time); }) {}

void Deadline::wait(const std::stop_token& ended, std::chrono::duration<double> time) {
  constexpr std::chrono::duration<double> kForEver = std::chrono::hours(24 * 365 * 100);  // what clocks can count
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, ended, std::min(time, kForEver), [] { return false; });
  if (ended.stop_requested() || source_.stop_requested()) return;
  passed_ = true;
  source_.request_stop();
  ended_.wait_for(lock, ended, std::min(time / 4, kGrace), [] { return false; });
  const auto end = end_overdue.load();
  if (!ended.stop_requested() && end != nullptr) end(error_);
}

void set_overdue_handler(void (*end)(const Error& error)) noexcept { end_overdue = end; }

namespace {

Error wrong(std::string_view text) {
  return usage_error(fmt::format("'{}' is not a device", text), "give cpu, cuda:0 or, for several, cuda:0,cuda:1");
}

int parse_one(std::string_view all, std::string_view name) {
  if (name == "cuda") return 0;
  int number = 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) throw wrong(all);
  const char* const first = name.data() + kPrefix.size();
  const char* const last = name.data() + name.size();
  const auto [end, code] = std::from_chars(first, last, number);
  if (code != std::errc() || end != last || number < 0) throw wrong(all);
  return number;
}

}  // namespace

std::vector<int> parse_devices(std::string_view text) {
  std::vector<int> devices;
  if (text == "cpu") return devices;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const int device = parse_one(text, text.substr(at, comma - at));
    if (std::find(devices.begin(), devices.end(), device) != devices.end())
      throw usage_error(fmt::format("'{}' names a device twice", text));
    devices.push_back(device);
    at = comma + 1;
  }
  return devices;
}

}  // namespace detent
