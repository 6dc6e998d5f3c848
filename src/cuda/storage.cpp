#include "cuda/storage.h"

#include "cuda/record_reader.h"

namespace detent::cuda {
namespace {

class Storage : public store::DeviceStorage {
 public:
  Storage(int number, GdsMode mode, const std::filesystem::path& directory)
      : device_(number, std::nullopt), reader_(device_, mode, directory) {}

  void read(const store::RecordOnDisk& record, void* to) override { reader_.read(record, to); }
  void* memory(std::size_t size) override {
    if (size > size_) {
      memory_ = DeviceMemory();
      memory_ = DeviceMemory(device_.memory(), size, "what is read");
      size_ = size;
    }
    return memory_.address();
  }
  const store::DeviceRoute& route() const override { return reader_.route(); }

 private:
  Device device_;
  RecordReader reader_;
  DeviceMemory memory_;
  std::size_t size_ = 0;
};

std::unique_ptr<store::DeviceStorage> open(int device, GdsMode mode, const std::filesystem::path& directory) {
  return std::make_unique<Storage>(device, mode, directory);
}

}  // namespace

const store::StorageCalls& storage_calls() {
  static constexpr store::StorageCalls kCalls{&open};
  return kCalls;
}

}  // namespace detent::cuda
