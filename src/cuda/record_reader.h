// Records of the spool, read into a GPU's memory by the way that was asked for or is the fastest.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cuda/device.h"
#include "detent/device.h"
#include "shim/cufile.h"
#include "store/device_route.h"

namespace detent::cuda {

/// Reads for one device, which must outlive this and is current wherever this is used. The choice is made at once: it
/// may open cuFile and measure, which takes some tenths of a second.
class RecordReader : public store::DeviceReader {
 public:
  /// `directory`: where the records' files are. Throws device where `mode` is on and cannot be.
  RecordReader(Device& device, GdsMode mode, const std::filesystem::path& directory,
               const shim::CuFilePlaces& places = {});
  ~RecordReader() override;

  void read(const store::RecordOnDisk& record, void* to) override;

  const store::DeviceRoute& route() const noexcept { return route_; }
  /// One sentence for the notes of a run.
  std::string note() const;

 private:
  class Buffers;
  std::string refusal(const std::filesystem::path& directory);
  double rate(const store::DeviceRoute& route, const std::filesystem::path& directory);
  std::unique_ptr<store::DeviceReader> open(const store::DeviceRoute& route);

  Device& device_;
  shim::CuFilePlaces places_;
  std::shared_ptr<const shim::CuFile> cufile_;
  store::DeviceRoute route_;
  std::unique_ptr<store::DeviceReader> reader_;
};

}  // namespace detent::cuda
