// Functions of a model: how many nodes they come to, and where they may not be.
#include "onnx/functions.h"

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

class Functions : public ModelTest {
 protected:
  static Msg call(const std::string& name, const std::string& domain = "own", const std::string& from = "x",
                  const std::string& to = "y") {
    return node(name, {from}, {to}).text(7, domain);
  }
  static Msg function(const std::string& name, const std::vector<Msg>& nodes, const std::string& domain = "own") {
    Msg m = Msg().text(1, name).text(4, "x").text(10, domain);
    for (const auto& n : nodes) m.sub(7, n);
    return m;
  }
  static Msg model(const std::vector<Msg>& functions, const Msg& first) {
    Msg m = model_of(Msg().sub(1, first).text(2, "g").sub(11, value_info("x")).sub(12, value_info("y")));
    for (const auto& f : functions) m.sub(25, f);
    return m;
  }
  // Functions of which each calls the one before it twice.
  static std::vector<Msg> doubling(int levels) {
    std::vector<Msg> functions{function("f0", {node("Relu", {"x"}, {"y"})})};
    for (int i = 1; i <= levels; ++i) {
      const auto inner = "f" + std::to_string(i - 1);
      functions.push_back(function("f" + std::to_string(i), {call(inner, "own", "x", "m"), call(inner, "own", "m")}));
    }
    return functions;
  }
};

TEST_F(Functions, MayCallEachOther) {
  const Model read_back = read(model(doubling(15), call("f15")));
  EXPECT_EQ(read_back.functions.size(), 16U);
  EXPECT_EQ(read_back.functions[1], "own::f1");
}

TEST_F(Functions, RefusesMoreNodesThanAModelHas) {
  expect_error([&] { read(model(doubling(40), call("f40"))); }, "come to more than 1000000 nodes");
  expect_error([&] { read(model(doubling(40), node("Relu", {"x"}, {"y"}))); }, "more than 1000000");
  const Msg body = Msg().sub(1, call("f19")).sub(1, call("f19"));
  const Msg loop = node("Loop", {"x"}, {"y"}, {attribute_head("body").sub(6, body).varint(20, 5)});
  expect_error([&] { read(model(doubling(19), loop)); }, "more than 1000000");
}

TEST_F(Functions, RefusesCallsWithoutAnEnd) {
  expect_error([&] { read(model({function("f", {call("f")})}, call("f"))); }, "calls itself");
  expect_error([&] { read(model({function("f", {call("g")}), function("g", {call("f")})}, call("f"))); }, "itself");
  std::vector<Msg> chain{function("f0", {})};
  for (int i = 1; i < 5000; ++i)
    chain.push_back(function("f" + std::to_string(i), {call("f" + std::to_string(i - 1))}));
  expect_error([&] { read(model(chain, call("f4999"))); }, "too deeply");
}

TEST_F(Functions, RefusesTheDomainsOfOperators) {
  for (const char* domain : {"", "ai.onnx", "com.microsoft", "com.microsoft.nchwc"})
    expect_error([&] { read(model({function("Relu", {}, domain)}, call("Relu", domain))); }, "the runtime's operators");
}

TEST_F(Functions, RefusesOperatorsOfDetentsOwn) {
  const Msg tap = node("Tap", {"x"}, {"y"}).text(7, kPrivateDomain);
  expect_error([&] { read(model({}, tap)); }, "is of the domain 'detent.exec', which is detent's own");
  expect_error([&] { read(model({function("f", {tap})}, call("f"))); },
               "is of the domain 'detent.exec', which is detent's own");
}

}  // namespace
}  // namespace detent::onnx::test
