// Which nodes of small graphs make features of sound before a network learns anything.
#include "graph/patterns.h"

#include <gtest/gtest.h>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

Names names_of(std::vector<Node> nodes, FrontEnds which = FrontEnds::all) {
  const auto model = make_model(std::move(nodes),
                                {floats("w", {2, 2}, {1, 2, 3, 4}), floats("two", {}, {2}), floats("third", {}, {0.3F}),
                                 floats("half", {}, {0.5F}), floats("small", {}, {1e-6F})});
  Names names;
  for (const auto n : front_end(model, Index(model), which)) names.push_back(model.graph.nodes[n].name());
  return names;
}

std::vector<Node> spectrum() {
  return {{"MatMul", "transform", {"x", "w"}, {"bins"}},
          {"Pow", "square", {"bins", "two"}, {"powers"}},
          {"MatMul", "filters", {"powers", "w"}, {"bands"}}};
}

std::vector<Node> with(std::vector<Node> nodes, const std::vector<Node>& more) {
  nodes.insert(nodes.end(), more.begin(), more.end());
  return nodes;
}

const Names kWhole{"transform", "square", "filters", "add", "end"};

TEST(FrontEnd, EndsWithALogarithm) {
  const auto nodes = with(spectrum(), {{"Add", "add", {"bands", "small"}, {"sums"}},
                                       {"Log", "end", {"sums"}, {"z"}},
                                       {"MatMul", "first", {"z", "w"}, {"y"}}});
  EXPECT_EQ(names_of(nodes), kWhole);
  EXPECT_EQ(names_of(nodes, FrontEnds::logarithms), kWhole);
}

TEST(FrontEnd, EndsWithABoundedLogarithm) {
  const auto nodes = with(spectrum(), {{"Clip", "bound", {"bands", "small"}, {"c"}}, {"Log", "end", {"c"}, {"y"}}});
  EXPECT_EQ(names_of(nodes), (Names{"transform", "square", "filters", "bound", "end"}));
}

TEST(FrontEnd, EndsWithAPowerThatIsNoRoot) {
  const auto power = [](const char* exponent) {
    return with(spectrum(), {{"Add", "add", {"bands", "small"}, {"sums"}}, {"Pow", "end", {"sums", exponent}, {"y"}}});
  };
  EXPECT_EQ(names_of(power("third"), FrontEnds::logarithms), kWhole);
  EXPECT_TRUE(names_of(power("half")).empty());
  EXPECT_TRUE(names_of(power("two")).empty());
}

TEST(FrontEnd, EndsWithADivisionByWhatVaries) {
  const std::vector<Node> normalization{{"ReduceMean", "mean", {"bands"}, {"m"}},
                                        {"Div", "end", {"bands", "m"}, {"y"}}};
  EXPECT_EQ(names_of(with(spectrum(), normalization)), (Names{"transform", "square", "filters", "mean", "end"}));
  EXPECT_TRUE(names_of(with(spectrum(), normalization), FrontEnds::logarithms).empty());
  EXPECT_TRUE(names_of(with(spectrum(), {{"Div", "end", {"bands", "two"}, {"y"}}})).empty());
}

TEST(FrontEnd, IsNotWhatALayerLearns) {
  // Behind a Relu, the second product is one of a network; nothing leads from the first to the logarithm without it.
  const auto nodes = std::vector<Node>{{"MatMul", "first", {"x", "w"}, {"a"}},
                                       {"Relu", "relu", {"a"}, {"b"}},
                                       {"MatMul", "second", {"b", "w"}, {"c"}},
                                       {"Log", "end", {"c"}, {"y"}}};
  EXPECT_TRUE(names_of(nodes).empty());
  EXPECT_TRUE(names_of({{"MatMul", "first", {"x", "w"}, {"a"}},
                        {"Exp", "exp", {"a"}, {"b"}},
                        {"Add", "add", {"b", "small"}, {"c"}},
                        {"Log", "softplus", {"c"}, {"y"}}})
                  .empty());
  EXPECT_TRUE(names_of({{"Add", "add", {"x", "small"}, {"c"}}, {"Log", "end", {"c"}, {"y"}}}).empty());  // no product
}

TEST(FrontEnd, HasFiltersThatNodesMake) {
  const auto nodes = std::vector<Node>{{"Sigmoid", "made", {"w"}, {"filter"}},
                                       {"MatMul", "transform", {"x", "filter"}, {"a"}},
                                       {"Log", "end", {"a"}, {"y"}}};
  EXPECT_EQ(names_of(nodes), (Names{"transform", "end"}));
}

}  // namespace
}  // namespace detent::graph
