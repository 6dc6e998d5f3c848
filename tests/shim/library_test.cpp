#include "shim/library.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

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

}  // namespace
}  // namespace detent::shim
