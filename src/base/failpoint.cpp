#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace detent {
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
