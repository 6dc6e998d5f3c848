#include "shim/cuda_driver.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "shim/library.h"

namespace detent::shim {
namespace {

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

}  // namespace
}  // namespace detent::shim
