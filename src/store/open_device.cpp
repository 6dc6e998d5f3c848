#include "store/open_device.h"

#include <fmt/format.h>

#include "base/error.h"
#include "shim/library.h"

namespace detent::store {

std::unique_ptr<DeviceStorage> open_cuda_storage(int device, GdsMode mode, const std::filesystem::path& directory) {
  const auto plugin = shim::load_cuda_plugin({});
  const auto entry = reinterpret_cast<StorageEntry*>(plugin.symbol(kStorageEntryName));
  const StorageCalls* calls = entry(kStorageVersion);
  if (calls == nullptr) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return calls->open(device, mode, directory);
}

}  // namespace detent::store
