// Convolutions of one place with strides: which become a pool and a convolution without.
#include "graph/support.h"

namespace detent::graph::test {
namespace {

Node conv(const std::string& x, const std::string& w, const std::string& y, std::vector<Attribute> attributes) {
  return {"Conv", y, {x, w}, {y}, std::move(attributes)};
}
Attribute strides(std::int64_t n) { return Attribute::of_ints("strides", {n, n}); }

class StridedPoints : public ::testing::Test {
 protected:
  Model model_of(std::vector<Node> nodes) {
    return make_model(std::move(nodes), {floats("w", {1, 1, 1, 1}, {2}), floats("v", {1, 1, 3, 3}, Floats(9, 1))}, 17,
                      {value("x", {1, 1, 5, 5})}, {value("y", {1, 1, 3, 3}), value("z", {1, 1, 3, 3})});
  }
};

TEST_F(StridedPoints, ShareAPoolWhereTheyReadTheSame) {
  auto model = model_of({conv("x", "w", "y", {strides(2)}), conv("x", "w", "z", {strides(2)})});
  EXPECT_EQ(pool_before_strided_points(model).size(), 1U);
  ASSERT_EQ(model.graph.nodes.size(), 3U);
  const auto& pool = model.graph.nodes[0];
  EXPECT_TRUE(pool.is("MaxPool"));
  EXPECT_EQ(pool.attribute("strides")->as_ints(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(pool.attribute("kernel_shape")->as_ints(), (std::vector<std::int64_t>{1, 1}));
  for (const auto n : {1U, 2U}) {
    EXPECT_EQ(model.graph.nodes[n].inputs()[0], pool.outputs()[0]);
    EXPECT_EQ(model.graph.nodes[n].attribute("strides")->as_ints(), (std::vector<std::int64_t>{1, 1}));
  }
}

TEST_F(StridedPoints, LeaveOthersAlone) {
  auto model = model_of({conv("x", "v", "y", {strides(2)}), conv("x", "w", "z", {strides(1)})});
  EXPECT_TRUE(pool_before_strided_points(model).empty());
  EXPECT_EQ(model.graph.nodes.size(), 2U);
  auto padded = model_of({conv("x", "w", "y", {strides(2), Attribute::of_ints("pads", {1, 1, 0, 0})}),
                          conv("x", "w", "z", {strides(2), Attribute::of_string("auto_pad", "SAME_UPPER")})});
  EXPECT_TRUE(pool_before_strided_points(padded).empty());
}

}  // namespace
}  // namespace detent::graph::test
