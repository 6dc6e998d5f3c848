// The plugin's readers into the memory of a GPU.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

#include "detent/device.h"
#include "store/device_route.h"

namespace detent::store {

/// A reader with memory of its own to read into, for those that drive no device themselves.
class DeviceStorage : public DeviceReader {
 public:
  /// Memory of the device for `size` bytes, the same each time; what was there before may be gone. Throws resource.
  virtual void* memory(std::size_t size) = 0;
  virtual const DeviceRoute& route() const = 0;
};

/// Loads the plugin and chooses the way, see choose_route(). Throws device where there is no such device, or another
/// version of the plugin, or where `mode` is on and cannot be.
std::unique_ptr<DeviceStorage> open_cuda_storage(int device, GdsMode mode, const std::filesystem::path& directory);

/// What the plugin offers this room, by its entry symbol.
struct StorageCalls {
  std::unique_ptr<DeviceStorage> (*open)(int device, GdsMode mode, const std::filesystem::path& directory);
};
using StorageEntry = const StorageCalls*(int version);  // null: the plugin is of another version
inline constexpr const char* kStorageEntryName = "detent_cuda_storage";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kStorageVersion = 1;

}  // namespace detent::store
