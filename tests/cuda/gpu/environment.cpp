// Runs the tests on GPUs, or says why not.
#include <gtest/gtest.h>

#include "cuda/support.h"
#include "shim/cuda_driver.h"

namespace detent::cuda {
namespace {

class Gpus final : public testing::Environment {
 public:
  void SetUp() override {
    const auto driver = shim::find_cuda_driver();
    if (driver.devices == 0) GTEST_SKIP() << "skipped: no GPU can be used: " << driver.reason;
  }
};

[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Gpus);

}  // namespace

bool has_plain_products() { return false; }
int device_count() { return std::max(shim::find_cuda_driver().devices, 1); }

}  // namespace detent::cuda
