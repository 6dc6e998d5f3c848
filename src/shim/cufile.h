// cuFile, the library of GPUDirect Storage: reads from a disk into a GPU's memory that pass the host by.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace detent::shim {

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
