// Two ranks of which the other one is a list of messages (peer_plugin.cpp).
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "shim/ranks.h"

namespace detent::test {

/// This process as this one of two ranks. The other sends these messages where one is awaited, and is gone after them,
/// which is an error of kind device.
inline shim::Ranks beside_peer(int rank, const std::vector<std::string>& messages) {
  void* const plugin = ::dlopen(PEER_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  auto* const play = plugin == nullptr ? nullptr : ::dlsym(plugin, "detent_peer");
  if (play == nullptr) throw internal_error("there is no plugin that plays a rank");
  reinterpret_cast<void (*)(int, const std::vector<std::string>*)>(play)(rank, &messages);
  ::setenv("PMI_SIZE", "2", 1);
  auto ranks = shim::Ranks::join(PEER_PLUGIN);
  ::unsetenv("PMI_SIZE");
  return ranks;
}

}  // namespace detent::test
