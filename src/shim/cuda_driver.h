// CUDA as seen by a program that is not linked with it: devices, the driver, and GPUDirect Storage.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace detent::shim {

/// What there is, in words: `devices` counts them; when it is 0, `reason` says why.
struct CudaDriver {
  int devices = 0;
  std::string reason;
};

/// Loads the driver's library and counts its devices. Never throws for a machine without any. May take seconds when
/// nothing has used a device yet: the driver then starts it. `library` is another one for tests.
CudaDriver find_cuda_driver(const std::string& library = "libcuda.so.1");

/// An entry of the plugin for GPUs: whether it and the runtime in it can use a device.
struct CudaProbe {
  /// Throws device.
  void (*require)(int device);
  /// Bytes that a run takes of its memory where no budget is given. Throws device.
  std::uint64_t (*budget)(int device);
};
using CudaProbeEntry = const CudaProbe*(int version);  // null: the plugin is of another version
inline constexpr const char* kCudaProbeEntryName = "detent_cuda_probe";
/// Raised when the entry changes. Plugin and binary come from the same compiler.
inline constexpr int kCudaProbeVersion = 2;

/// Throws device, with the reason, unless each of these devices is there. Call it before any work is done.
void require_cuda(const std::vector<int>& devices, const CudaDriver& driver);

/// The same of driver, plugin and the libraries behind it, all of which are loaded for that.
void require_cuda(const std::vector<int>& devices);

/// The smallest of the devices' budgets, where none is given. Throws as require_cuda().
std::uint64_t cuda_budget(const std::vector<int>& devices);

// A device that the runtime computes on, described by whoever drives it: this room knows ONNX Runtime's names and
// nothing of the device itself.

struct Device {
  /// As ONNX Runtime spells them. The CPU's provider is good too: its "device" memory is the host's.
  std::string provider = "CUDAExecutionProvider";
  std::string memory = "Cuda";
  int ordinal = 0;
  /// The stream (cudaStream_t) that all of a session computes on, so that what its owner puts there comes in order.
  /// Null: one that the runtime makes for each session.
  void* stream = nullptr;
  std::uint64_t memory_limit = 0;  // bytes that the runtime may take of the device's memory; 0: all there is
  /// Products of float32 may round their factors to 10 bits of mantissa.
  bool tf32 = false;
  /// Copies within the device's memory, in the order of the stream. Throws device.
  std::function<void(void* to, const void* from, std::size_t bytes)> copy;
};

// cuFile, the library of GPUDirect Storage: reads from a disk into a GPU's memory that pass the host by.

/// Where it is looked for; tests give others.
struct CuFilePlaces {
  std::string library = "libcufile.so.0";
  std::string driver = "libcuda.so.1";
  std::filesystem::path modules = "/proc/modules";
  /// Opening it may never return, on machines where its driver is half there.
  std::chrono::milliseconds patience{10'000};
};

/// The library with its driver open, for the life of the process. Its own reading through the host's memory, which it
/// would do silently where direct reads do not work, is forbidden.
class CuFile {
 public:
  /// Null, with the reason in `refusal`, where direct reads cannot work: no driver for CUDA, or no device; no kernel
  /// module nvidia-fs; no library, or an old one; its driver does not open, or not in time. After a refusal of the
  /// library it should not be asked again.
  static std::shared_ptr<const CuFile> open(std::string& refusal, const CuFilePlaces& places = {});

  /// A file made known to the library.
  class File {
   public:
    File(File&&) noexcept;
    File& operator=(File&&) = delete;
    ~File();
    /// Reads into an address of the current device. Bytes read; negative after an error, which reason() explains.
    std::ptrdiff_t read(void* to, std::size_t size, std::uint64_t offset) const;

   private:
    friend class CuFile;
    File(const CuFile* library, void* handle) : library_(library), handle_(handle) {}
    const CuFile* library_;
    void* handle_;
  };

  /// The descriptor, opened with O_DIRECT, must outlive the result, and so must this. Null, with the reason in
  /// `refusal`, where its file system does not do direct reads.
  std::unique_ptr<File> file(int descriptor, std::string& refusal) const;
  static std::string reason(std::ptrdiff_t result);

 private:
  struct Calls;
  explicit CuFile(std::unique_ptr<const Calls> calls);
  std::shared_ptr<const Calls> calls_;
};

}  // namespace detent::shim
