// Times of the kernels of a plain session, and the values that they make.
#include "exec/timing.h"

#include <algorithm>

#include "exec/support.h"

namespace detent::exec::test {
namespace {

// Inner products large enough to stand out beside the rest.
constexpr std::int64_t kSize = 192;

Model products() {
  const Floats w(static_cast<std::size_t>(kSize * kSize), 0.5F);
  return make_model({{"MatMul", "", {"x", "w"}, {"m"}},
                     {"Add", "", {"m", "bias"}, {"a"}},
                     {"Relu", "", {"a"}, {"r"}},
                     {"MatMul", "", {"r", "w"}, {"n"}},
                     if_node("c", "n", "n", "y")},
                    {floats("w", {kSize, kSize}, w), floats("bias", {kSize}, Floats(kSize, 1))}, 17,
                    {value("x", {kSize, kSize}), value("c", {}, DataType::boolean)}, {value("y", {kSize, kSize})});
}

const Kernel* maker_of(const std::vector<Kernel>& kernels, const std::string& name) {
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) {
    return std::find(kernel.outputs.begin(), kernel.outputs.end(), name) != kernel.outputs.end();
  });
  return found == kernels.end() ? nullptr : &*found;
}

TEST(KernelTimes, NamesTheValuesThatKernelsMake) {
  const std::vector<std::vector<Array>> samples{{random_floats({kSize, kSize}), boolean(true)}};
  const auto kernels = kernel_times(runtime(), products(), samples, {.threads = 1, .runs = 5});
  const Kernel* fused = maker_of(kernels, "r");
  ASSERT_NE(fused, nullptr);
  EXPECT_EQ(fused->op_type, "FusedGemm") << "product, bias and Relu in one";
  EXPECT_EQ(maker_of(kernels, "m"), nullptr);
  const Kernel* product = maker_of(kernels, "n");
  ASSERT_NE(product, nullptr);
  EXPECT_EQ(product->op_type, "MatMul");
  EXPECT_GT(product->seconds, 0);
}

TEST(KernelTimes, CountsWhatRunsInABodyOnce) {
  const std::vector<std::vector<Array>> samples{{random_floats({kSize, kSize}), boolean(true)},
                                                {random_floats({kSize, kSize}), boolean(false)}};
  const auto kernels =
      kernel_times(runtime(), products(), samples, {.threads = 1, .runs = 8, .seconds = 100, .fastest = true});
  const auto of_type = [&](const std::string& op_type) {
    const auto found =
        std::find_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.op_type == op_type; });
    return found == kernels.end() ? 0 : found->seconds;
  };
  EXPECT_GT(of_type("Add"), 0) << "in the body of the If, in every second run";
  EXPECT_GT(of_type("Neg"), 0);
  EXPECT_LT(of_type("If"), of_type("MatMul")) << "without its bodies";
}

TEST(KernelTimes, NamesTheValuesOfTheBlockedLayout) {
  const Model model = make_model(
      {{"Conv", "", {"x", "w"}, {"a"}, {onnx::Attribute::of_ints("pads", {1, 1, 1, 1})}}, {"Relu", "", {"a"}, {"y"}}},
      {floats("w", {16, 16, 3, 3}, Floats(16 * 16 * 9, 0.1F))}, 17, {value("x", {1, 16, 24, 24})},
      {value("y", {1, 16, 24, 24})});
  const std::vector<std::vector<Array>> samples{{random_floats({1, 16, 24, 24})}};
  const auto kernels = kernel_times(runtime(), model, samples, {.threads = 1, .runs = 3});
  const auto conv = std::find_if(kernels.begin(), kernels.end(),
                                 [](const auto& k) { return k.op_type == "Conv" || k.op_type == "FusedConv"; });
  ASSERT_NE(conv, kernels.end());
  EXPECT_EQ(conv->outputs, Names{"y"});
}

}  // namespace
}  // namespace detent::exec::test
