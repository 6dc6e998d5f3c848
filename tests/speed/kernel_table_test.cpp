#include "speed/kernels.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace detent::speed {
namespace {

std::string row(const std::string& time, const std::string& others = "1") {
  std::string text = "{";
  for (const char* name : {"float", "integers", "quantize", "dequantize", "into_blocks"})
    text += '"' + std::string(name) + "\":" + others + ",";
  return text + "\"out_of_blocks\":" + time + "}";
}

std::string table(const std::string& kernels) {
  return R"({"format":"detent kernel times 1","kernels":)" + kernels + "}";
}

class KernelTableFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    std::ofstream(folder_.path() / "table.json", std::ios::trunc) << text;
    return folder_.path() / "table.json";
  }
  TempDir folder_{std::filesystem::temp_directory_path()};
};

TEST_F(KernelTableFile, HoldsWhatWasSaved) {
  const auto path = folder_.path() / "new" / "table.json";
  KernelTable made(path);
  made.add("Conv", {1e-3, 2e-3, 0, 1e-6, 0, 3e-6});
  made.save({});
  const KernelTable read(path);
  ASSERT_NE(read.find("Conv"), nullptr);
  EXPECT_DOUBLE_EQ(read.find("Conv")->in_integers, 2e-3);
  EXPECT_EQ(read.find("MatMul"), nullptr);
}

TEST_F(KernelTableFile, OfTimesThatNoKernelTakesIsRefused) {
  EXPECT_NO_THROW(KernelTable(write(table("{\"Conv\":" + row("0", "0") + ",\"Gemm\":" + row("0") + "}"))));
  EXPECT_THROW(KernelTable(write(table("{\"Conv\":" + row("0", "0") + "}"))), Error);
  for (const char* time : {"-1", "-0.001", "1e300", "1e13", "\"1\"", "null", "[]"})
    EXPECT_THROW(KernelTable(write(table("{\"Conv\":" + row(time) + "}"))), Error) << time;
  for (const char* kernels : {"null", "[]", "7", "[{}]", "\"Conv\"", "{\"Conv\":null}"})
    EXPECT_THROW(KernelTable(write(table(kernels))), Error) << kernels;
}

}  // namespace
}  // namespace detent::speed
