#include <gtest/gtest.h>

#include <fcntl.h>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "shim/cuda_driver.h"
#include "shim/library.h"

namespace detent::shim {
namespace {

TEST(CpuPlugin, SaysWhatIsMissing) {
  for (const bool by_variable : {false, true}) {
    const char* path = "/nonexistent/libdetent_cpu.so";
    ::setenv("DETENT_CPU_PLUGIN", by_variable ? path : "/nonexistent/other.so", 1);
    try {
      by_variable ? load_cpu_plugin({}) : load_cpu_plugin(path);
      FAIL() << "it was loaded";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::device);
      EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
      EXPECT_NE(e.hint().find("DETENT_CPU_PLUGIN"), std::string::npos);
    }
  }
}

std::string refusal(const std::vector<int>& devices, const CudaDriver& driver) {
  try {
    require_cuda(devices, driver);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_FALSE(e.hint().empty());
    return e.what();
  }
  return {};
}

TEST(CudaDriver, SaysThatItIsMissing) {
  const CudaDriver driver = find_cuda_driver("libdetent_no_such_driver.so.1");
  EXPECT_EQ(driver.devices, 0);
  EXPECT_NE(driver.reason.find("libdetent_no_such_driver.so.1"), std::string::npos) << driver.reason;
  EXPECT_NE(refusal({0}, driver).find("cuda:0: no CUDA driver"), std::string::npos) << refusal({0}, driver);
}

TEST(CudaDriver, SaysThatALibraryIsNone) {
  const CudaDriver driver = find_cuda_driver("libc.so.6");
  EXPECT_EQ(driver.devices, 0);
  EXPECT_NE(driver.reason.find("cuInit"), std::string::npos) << driver.reason;
}

TEST(CudaDriver, CountsAndSaysWhyItDoesNot) {
  EXPECT_EQ(find_cuda_driver(FAKE_CUDA).devices, 2);
  EXPECT_EQ(find_cuda_driver(FAKE_CUDA).reason, "");
  ::setenv("FAKE_CUDA_INIT", "100", 1);
  EXPECT_NE(find_cuda_driver(FAKE_CUDA).reason.find("CUDA_ERROR_NO_DEVICE"), std::string::npos);
  ::unsetenv("FAKE_CUDA_INIT");
  ::setenv("FAKE_CUDA_DEVICES", "0", 1);
  EXPECT_EQ(find_cuda_driver(FAKE_CUDA).reason, "the CUDA driver sees no device");
  ::unsetenv("FAKE_CUDA_DEVICES");
}

TEST(CudaDriver, RefusesDevicesThatAreNotThere) {
  EXPECT_EQ(refusal({0, 1}, {2, ""}), "");
  EXPECT_EQ(refusal({0, 2}, {2, ""}), "--device cuda:2: the CUDA driver sees 2 devices");
  EXPECT_EQ(refusal({1}, {1, ""}), "--device cuda:1: the CUDA driver sees 1 device");
  EXPECT_EQ(refusal({}, {0, "none"}), "");
}

TEST(CudaPlugin, SaysWhatIsMissing) {
  ::setenv("DETENT_CUDA_PLUGIN", "/nonexistent/libdetent_cuda.so", 1);
  try {
    load_cuda_plugin({});
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find("/nonexistent/libdetent_cuda.so"), std::string::npos) << e.what();
  }
  ::unsetenv("DETENT_CUDA_PLUGIN");
}

class CuFileTest : public testing::Test {
 protected:
  CuFileTest() {
    places_.library = FAKE_CUFILE_LIBRARY;
    places_.driver = FAKE_CUDA;
    places_.modules = folder_.path() / "modules";
    places_.patience = std::chrono::minutes(1);
    std::ofstream(places_.modules) << "nvidia 1 0 - Live 0x0\nnvidia_fs 323584 0 - Live 0x0\n";
  }
  ~CuFileTest() override {
    for (const char* variable : {"FAKE_CUFILE", "FAKE_CUDA_DEVICES", "CUFILE_FORCE_COMPAT_MODE"}) ::unsetenv(variable);
  }
  std::string refusal() {
    std::string why;
    const auto library = CuFile::open(why, places_);
    EXPECT_EQ(library == nullptr, !why.empty()) << why;
    return why;
  }

  TempDir folder_;
  CuFilePlaces places_;
};

TEST_F(CuFileTest, NeedsADevice) {
  places_.driver = "libdetent_no_such_driver.so.1";
  EXPECT_NE(refusal().find("no CUDA driver"), std::string::npos) << refusal();
  places_.driver = FAKE_CUDA;
  ::setenv("FAKE_CUDA_DEVICES", "0", 1);
  EXPECT_EQ(refusal(), "the CUDA driver sees no device");
}

TEST_F(CuFileTest, NeedsItsKernelModule) {
  std::ofstream(places_.modules) << "nvidia 1 0 - Live 0x0\nnot_nvidia_fs 1 0 - Live 0x0\n";
  EXPECT_EQ(refusal(), "the kernel module nvidia-fs is not loaded");
  places_.modules = folder_.path() / "none";
  EXPECT_NE(refusal().find("cannot be read"), std::string::npos) << refusal();
}

TEST_F(CuFileTest, NeedsTheLibrary) {
  places_.library = "libdetent_no_such_cufile.so.0";
  EXPECT_NE(refusal().find("cuFile cannot be loaded (libdetent_no_such_cufile.so.0"), std::string::npos) << refusal();
  places_.library = "libc.so.6";
  EXPECT_NE(refusal().find("is too old, or no cuFile"), std::string::npos) << refusal();
}

TEST_F(CuFileTest, MustReadPastTheHost) {
  ::setenv("CUFILE_FORCE_COMPAT_MODE", "true", 1);
  EXPECT_NE(refusal().find("CUFILE_FORCE_COMPAT_MODE"), std::string::npos) << refusal();
  ::unsetenv("CUFILE_FORCE_COMPAT_MODE");
  ::setenv("FAKE_CUFILE", "compat", 1);
  EXPECT_EQ(refusal(), "cuFile cannot be kept from reading through the host's memory");
}

TEST_F(CuFileTest, MustOpenInTime) {
  ::setenv("FAKE_CUFILE", "fails", 1);
  EXPECT_EQ(refusal(), "cuFile's driver does not open (error 5001, CUDA 0)");
  ::setenv("FAKE_CUFILE", "sleeps", 1);
  places_.patience = std::chrono::milliseconds(100);
  EXPECT_EQ(refusal(), "cuFile's driver did not open within 0.1 s");
}

TEST_F(CuFileTest, ReadsPartsOfFiles) {
  std::ofstream(folder_.path() / "data") << "0123456789";
  const UniqueFd file(::open((folder_.path() / "data").c_str(), O_RDONLY | O_CLOEXEC));
  std::string why;
  const auto library = CuFile::open(why, places_);
  ASSERT_NE(library, nullptr) << why;
  const auto known = library->file(file.get(), why);
  ASSERT_NE(known, nullptr) << why;
  std::array<char, 4> to{};
  EXPECT_EQ(known->read(to.data(), to.size(), 3), 4);
  EXPECT_EQ(std::string(to.data(), to.size()), "3456");
  EXPECT_EQ(known->read(to.data(), to.size(), 8), 2) << "the file ends there";
  EXPECT_EQ(CuFile::reason(-EIO), "Input/output error");
  EXPECT_EQ(CuFile::reason(-5030), "cuFile's error 5030");
  ::setenv("FAKE_CUFILE", "refuses", 1);
  EXPECT_EQ(library->file(file.get(), why), nullptr);
  EXPECT_EQ(why, "cuFile does not take files of this file system (error 5027)");
}

}  // namespace
}  // namespace detent::shim
