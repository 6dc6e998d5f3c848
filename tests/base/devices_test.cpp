#include <gtest/gtest.h>

#include "base/error.h"
#include "detent/device.h"

namespace detent {
namespace {

TEST(Devices, AreNumbersAfterCuda) {
  EXPECT_EQ(parse_devices("cpu"), std::vector<int>());
  EXPECT_EQ(parse_devices("cuda"), std::vector<int>({0}));
  EXPECT_EQ(parse_devices("cuda:3"), std::vector<int>({3}));
  EXPECT_EQ(parse_devices("cuda:1,cuda:0,cuda:12"), std::vector<int>({1, 0, 12}));
}

TEST(Devices, OthersAreRefused) {
  for (const char* text : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda:0,", ",cuda:0", "cuda:0,cpu",
                           "cpu,cuda:0", "cuda:0,cuda:0", "cuda,cuda:0", "cuda:99999999999", "CUDA:0", "cuda:0 "}) {
    try {
      parse_devices(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage) << text;
    }
  }
}

}  // namespace
}  // namespace detent
