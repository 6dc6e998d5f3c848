#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "detent/device.h"

namespace detent {
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
