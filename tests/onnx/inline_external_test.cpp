// Tensors with external data that are no initializers of the main graph: read by the rules, then part of the model.
#include "onnx/model_read.h"

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

class Inline : public ModelTest {
 protected:
  void SetUp() override { write_file(at("w.bin"), raw_bytes<float>({1, 2, 3, 4})); }

  static Msg tensor(const std::string& location = "w.bin", DataType type = DataType::float32) {
    return tensor_head("t", type, {4}).sub(13, entry("location", location)).varint(14, 1);
  }
  static Msg with_node(const Msg& attribute) {
    Msg graph;
    graph.sub(1, node("Constant", {}, {"c"}, {attribute})).sub(1, node("Relu", {"x"}, {"y"})).text(2, "g");
    return model_of(graph.sub(11, value_info("x")).sub(12, value_info("y")));
  }
  static Msg value(const Msg& t) { return attribute_head("value").sub(5, t).varint(20, 4); }
};

TEST_F(Inline, LeavesWhatIsInlineAsItIs) {
  const Msg inside = tensor_head("t", DataType::float32, {4}).text(9, raw_bytes<float>({1, 2, 3, 4}));
  const Model model = read(with_node(value(inside)));
  EXPECT_TRUE(model.file->contains(as_byte_span(model.graph.nodes[0].encode().view()))) << "no copy";
}

TEST_F(Inline, ReadsTheTensorOfAnAttribute) {
  const Model model = read(with_node(value(tensor().text(12, "a doc string").text(9, "stray"))));
  fs::remove(at("w.bin"));
  const Node& constant = model.graph.nodes[0];
  const Tensor t = read_attribute_tensor(model, constant, *constant.attribute("value"));
  EXPECT_EQ(elements<float>(t), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_FALSE(t.is_external);
  EXPECT_NE(constant.encode().view().find("a doc string"), std::string_view::npos);
  EXPECT_EQ(constant.encode().view().find("w.bin"), std::string_view::npos);
}

TEST_F(Inline, ReadsBodiesAtAnyDepth) {
  Msg graph;
  graph.sub(5, tensor()).text(2, "innermost");
  for (int depth = 0; depth < 60; ++depth) {
    const Msg holder = node("If", {"x"}, {"y"}, {attribute_head("then_branch").sub(6, graph).varint(20, 5)});
    graph = Msg().sub(1, holder).text(2, "g");
  }
  const Msg attribute = attribute_head("then_branch").sub(6, graph).varint(20, 5);
  const Model model = read(with_node(attribute));
  EXPECT_NE(model.graph.nodes[0].encode().view().find(raw_bytes<float>({1, 2, 3, 4})), std::string_view::npos);
  EXPECT_EQ(model.graph.nodes[0].encode().view().find("w.bin"), std::string_view::npos);
  for (int depth = 0; depth < 10; ++depth) {
    const Msg holder = node("If", {"x"}, {"y"}, {attribute_head("then_branch").sub(6, graph).varint(20, 5)});
    graph = Msg().sub(1, holder).text(2, "g");
  }
  expect_error([&] { read(with_node(attribute_head("then_branch").sub(6, graph).varint(20, 5))); }, "64 deep");
}

TEST_F(Inline, ReadsFunctionsSparseTensorsAndTraining) {
  const Msg constant = node("Constant", {}, {"c"}, {value(tensor())});
  Msg model = model_of(graph_with({}).sub(
      15, Msg().sub(1, tensor()).sub(2, tensor_head("", DataType::int64, {1}).text(9, std::string(8, '\0')))));
  model.sub(25, Msg().text(1, "F").text(10, "own").sub(7, constant).sub(11, value(tensor())));
  model.sub(20, Msg().sub(1, Msg().sub(1, constant)).sub(2, Msg().sub(5, tensor())));
  write_model(read(model), at("out.onnx"));
  EXPECT_EQ(read_file(at("out.onnx")).find("w.bin"), std::string::npos);
  EXPECT_EQ(read(model).graph.sparse_initializers, std::vector<std::string>{"t"});
}

// Readers of protobuf merge the two messages into one.
TEST_F(Inline, RefusesAMessageThatStandsTwice) {
  Msg half;
  half.sub(13, entry("location", "../secret.bin"));
  expect_error([&] { read(with_node(attribute_head("value").sub(5, tensor()).sub(5, half).varint(20, 4))); }, "twice");
  const Msg sparse = Msg().sub(1, tensor()).sub(1, half);
  expect_error([&] { read(with_node(attribute_head("value").sub(22, sparse).varint(20, 11))); }, "twice");
  expect_error([&] { read(with_node(attribute_head("g").sub(6, Msg()).sub(6, Msg()).varint(20, 5))); }, "twice");
}

TEST_F(Inline, RefusesTypesWithoutAPlainForm) {
  for (const auto type : {DataType::string, DataType::undefined, static_cast<DataType>(99)}) {
    expect_error([&] { read(with_node(value(tensor("w.bin", type)))); }, "external data of type");
    expect_error([&] { read(model_of(graph_with({tensor("w.bin", type)}))); }, "external data of type");
  }
}

TEST_F(Inline, CopiesNoMoreThanItMay) {
  write_file(at("model.onnx"), "");
  ExternalFiles files(at("model.onnx"));
  ExternalInliner inliner(files, "model 'm'", 40);
  const Wire wire = Wire::own(value(tensor()).bytes);
  inliner.inlined(Message::attribute, wire);
  inliner.inlined(Message::attribute, wire);
  expect_error([&] { inliner.inlined(Message::attribute, wire); }, "more than 40 B of external data");
}

}  // namespace
}  // namespace detent::onnx::test
