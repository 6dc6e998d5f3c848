// The plugin itself, on a machine without a driver.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "shim/cuda_driver.h"
#include "shim/library.h"
#include "solve/layers/layer_solver.h"
#include "solve/support.h"

namespace detent::cuda {
namespace {

#ifdef CUDA_PLUGIN
constexpr const char* kPlugin = CUDA_PLUGIN;
#else
constexpr const char* kPlugin = "";
#endif

class Plugin : public testing::Test {
 protected:
  void SetUp() override {
    if (*kPlugin == 0) GTEST_SKIP() << "skipped: CMake found no nvcc, so there is no plugin";
    if (shim::find_cuda_driver().devices > 0) GTEST_SKIP() << "skipped: there is a GPU";
  }
};

TEST_F(Plugin, LoadsWithoutADriverAndRefusesInWords) {
  const shim::Library library = shim::load_cuda_plugin(kPlugin);
  const auto probe = reinterpret_cast<shim::CudaProbeEntry*>(library.symbol(shim::kCudaProbeEntryName));
  ASSERT_NE(probe(shim::kCudaProbeVersion), nullptr);
  try {
    probe(shim::kCudaProbeVersion)->require(0);
    ADD_FAILURE() << "a device was found";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device);
    EXPECT_NE(std::string(e.what()).find("the GPU failed to be used: "), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

TEST_F(Plugin, KnowsItsVersion) {
  const shim::Library library = shim::load_cuda_plugin(kPlugin);
  EXPECT_EQ(reinterpret_cast<shim::CudaProbeEntry*>(library.symbol(shim::kCudaProbeEntryName))(-1), nullptr);
  const auto solver = reinterpret_cast<solve::CudaSolverEntry*>(library.symbol(solve::kCudaSolverEntryName));
  EXPECT_EQ(solver(-1, {}, solve::kernels(), nullptr), nullptr);
}

TEST_F(Plugin, SolverSaysWhyThereIsNone) {
  ::setenv("DETENT_CUDA_PLUGIN", kPlugin, 1);
  DeviceConfig config;
  config.cuda = {0};
  try {
    solve::cuda_solver(config, solve::kernels(), nullptr);
    ADD_FAILURE() << "a solver was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::device) << e.what();
  }
  ::unsetenv("DETENT_CUDA_PLUGIN");
}

}  // namespace
}  // namespace detent::cuda
