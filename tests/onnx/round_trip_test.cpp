// What detent does not change it writes back byte for byte.
#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

class RoundTrip : public ModelTest {
 protected:
  Model expect_same(const Msg& message) const {
    Model model = read(message);
    EXPECT_EQ(encode_model(model, nullptr), message.bytes);
    write_model(model, at("out.onnx"));
    EXPECT_EQ(read_file(at("out.onnx")), message.bytes);
    EXPECT_FALSE(fs::exists(at("out.onnx.data")));
    return model;
  }
};

Msg unknown(Msg m) { return m.varint(777, -5).text(778, "later").fixed32(779, 1.5F).fixed64(780, 2.5); }

TEST_F(RoundTrip, KeepsUnknownFieldsAtEveryLevel) {
  const Msg attribute = unknown(attribute_head("alpha").fixed32(2, 0.25F).text(13, "doc").varint(20, 1));
  const Msg n = unknown(node("Elu", {"x"}, {"y"}, {attribute}));
  const Msg tensor =
      unknown(tensor_head("w", DataType::float32, {2}).text(9, raw_bytes<float>({1, 2})).text(12, "doc"));
  const Msg graph = unknown(Msg()
                                .sub(1, n)
                                .text(2, "g")
                                .sub(5, tensor)
                                .text(10, "doc")
                                .sub(11, value_info("x"))
                                .sub(12, unknown(value_info("y"))));
  const Model model =
      expect_same(unknown(Msg().varint(1, 8).sub(7, graph).sub(8, unknown(Msg().text(1, "").varint(2, 17)))));
  EXPECT_EQ(model.graph.nodes.at(0).float_or("alpha", 0), 0.25F);
  EXPECT_EQ(model.opset(), 17);
}

TEST_F(RoundTrip, KeepsEmptyStringsAndMetadata) {
  const Msg n =
      Msg().text(1, "x").text(1, "").text(2, "y").text(2, "").text(3, "").text(4, "Clip").text(6, "").text(7, "").sub(
          9, entry("k", "v"));
  const Msg graph = Msg()
                        .sub(1, n)
                        .text(2, "")
                        .text(10, "")
                        .sub(11, value_info("x"))
                        .sub(12, value_info("y"))
                        .sub(14, Msg())
                        .sub(16, entry("graph", ""));
  const Model model = expect_same(Msg()
                                      .varint(1, 10)
                                      .text(2, "")
                                      .text(3, "1.0")
                                      .text(4, "")
                                      .varint(5, 0)
                                      .text(6, "doc")
                                      .sub(7, graph)
                                      .sub(8, Msg().text(1, "ai.onnx").varint(2, 17))
                                      .sub(8, Msg().text(1, "com.microsoft").varint(2, 1))
                                      .sub(14, entry("author", ""))
                                      .sub(14, entry("author", "twice")));
  EXPECT_EQ(model.graph.nodes.at(0).inputs(), (std::vector<std::string>{"x", ""}));
  EXPECT_EQ(model.opset(), 17) << "ai.onnx is the default domain";
  EXPECT_EQ(model.opset("com.microsoft"), 1);
  EXPECT_EQ(model.ir_version, 10);
}

TEST_F(RoundTrip, KeepsFunctionsAndSparseInitializers) {
  const Msg function = Msg()
                           .text(1, "Twice")
                           .text(4, "a")
                           .text(5, "b")
                           .sub(7, node("Add", {"a", "a"}, {"b"}))
                           .sub(9, Msg().text(1, "").varint(2, 17))
                           .text(10, "local");
  const Msg values = tensor_head("sp", DataType::float32, {1}).text(9, raw_bytes<float>({3}));
  const Msg indices = tensor_head("", DataType::int64, {1}).text(9, raw_bytes<std::int64_t>({1}));
  const Msg sparse = Msg().sub(1, values).sub(2, indices).varint(3, 4);
  Msg message = model_of(
      Msg().sub(1, node("Relu", {"x"}, {"y"})).sub(11, value_info("x")).sub(12, value_info("y")).sub(15, sparse));
  message.sub(25, function);
  const Model model = expect_same(message);
  EXPECT_EQ(model.functions, (std::vector<std::string>{"local::Twice"}));
  EXPECT_EQ(model.graph.sparse_initializers, (std::vector<std::string>{"sp"}));
}

TEST_F(RoundTrip, KeepsAndReadsEveryKindOfAttribute) {
  const Msg tensor = tensor_head("t", DataType::int32, {1}).packed(5, {-7});
  const Msg body = graph_with({});
  const auto kind = [](Msg m, int value) { return m.varint(20, value); };
  const std::vector<Msg> attributes{
      kind(attribute_head("f").fixed32(2, 0.5F), 1),
      kind(attribute_head("i").varint(3, -3), 2),
      kind(attribute_head("s").text(4, std::string("a\0b", 3)), 3),
      kind(attribute_head("t").sub(5, tensor), 4),
      kind(attribute_head("g").sub(6, body), 5),
      kind(attribute_head("floats").fixed32(7, 1).fixed32(7, 2), 6),
      kind(attribute_head("ints").varint(8, 1).varint(8, -2), 7),
      kind(attribute_head("ints packed").packed(8, {1, -2}), 7),
      kind(attribute_head("floats packed").text(7, raw_bytes<float>({1, 2})), 6),
      kind(attribute_head("strings").text(9, "a").text(9, ""), 8),
      kind(attribute_head("tensors").sub(10, tensor).sub(10, tensor), 9),
      kind(attribute_head("graphs").sub(11, body).sub(11, body), 10),
      kind(attribute_head("sparse").sub(22, Msg()), 11),
      kind(attribute_head("type").sub(14, Msg()), 13),
      kind(attribute_head("reference").text(21, "outer"), 2),
      attribute_head("untyped").varint(3, 9),
      Msg(),
  };
  const Msg graph =
      Msg().sub(1, node("Any", {"x"}, {"y"}, attributes)).sub(11, value_info("x")).sub(12, value_info("y"));
  const Model model = expect_same(model_of(graph));
  const Node& n = model.graph.nodes.at(0);
  EXPECT_EQ(n.attribute("f")->as_float(), 0.5F);
  EXPECT_EQ(n.attribute("i")->as_int(), -3);
  EXPECT_EQ(n.attribute("s")->as_string(), std::string("a\0b", 3));
  EXPECT_EQ(to_int64s(read_attribute_tensor(model, n, *n.attribute("t"))), (std::vector<std::int64_t>{-7}));
  EXPECT_EQ(n.attribute("g")->as_graphs().size(), 1U);
  EXPECT_EQ(n.attribute("graphs")->as_graphs().size(), 2U);
  EXPECT_EQ(n.attribute("floats")->as_floats(), (std::vector<float>{1, 2}));
  EXPECT_EQ(n.attribute("floats packed")->as_floats(), (std::vector<float>{1, 2}));
  EXPECT_EQ(n.attribute("ints")->as_ints(), (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(n.attribute("ints packed")->as_ints(), (std::vector<std::int64_t>{1, -2}));
  EXPECT_EQ(n.attribute("untyped")->as_int(), 9) << "IR version 1 and 2 tell the kind by the field";
  expect_error([&] { n.attribute("f")->as_int(); }, "'f' is not an integer");
  expect_error([&] { n.attribute("i")->as_tensor(); }, "'i' is not a tensor");
}

TEST_F(RoundTrip, KeepsEmptyMessages) {
  const Msg graph = Msg().sub(1, Msg()).sub(5, Msg()).sub(11, Msg()).sub(12, Msg()).sub(13, Msg());
  expect_same(Msg().varint(1, 8).sub(7, graph).sub(8, Msg()));
}

TEST_F(RoundTrip, KeepsTensorsInTypedFields) {
  expect_same(model_of(graph_with({
      tensor_head("f", DataType::float32, {2}).text(4, raw_bytes<float>({1, 2})),
      tensor_head("u", DataType::float32, {2}).fixed32(4, 1).fixed32(4, 2),
      tensor_head("i", DataType::int8, {2}).packed(5, {-1, 2}),
      tensor_head("d", DataType::float64, {1}).fixed64(10, 3),
      tensor_head("s", DataType::string, {2}).text(6, "a").text(6, ""),
      tensor_head("new type", static_cast<DataType>(99), {2}).text(9, "abc"),
      Msg().text(9, raw_bytes<float>({1})).text(8, "dims and type last").varint(2, 1).varint(1, 1),
  })));
}

TEST_F(RoundTrip, ChangedNodesKeepWhatWasNotChanged) {
  const Msg n = node("Elu", {"x"}, {"y"}, {attribute_head("alpha").fixed32(2, 0.25F).varint(20, 1)})
                    .text(6, "doc")
                    .text(99, "new");
  Model model = read(model_of(Msg().sub(1, n).sub(11, value_info("x")).sub(12, value_info("z"))));
  model.graph.nodes.at(0).set_output(0, "z");
  model.graph.nodes.at(0).set_attribute(Attribute::of_ints("axes", {1, -1}));
  const Model again = read(encode_model(model, nullptr));
  const Node& changed = again.graph.nodes.at(0);
  EXPECT_EQ(changed.outputs(), (std::vector<std::string>{"z"}));
  EXPECT_EQ(changed.float_or("alpha", 0), 0.25F);
  EXPECT_EQ(changed.attribute("axes")->as_ints(), (std::vector<std::int64_t>{1, -1}));
  const std::string text(changed.encode().view());
  EXPECT_NE(text.find("doc"), std::string::npos);
  EXPECT_NE(text.find("new"), std::string::npos);
}

TEST_F(RoundTrip, ReplacesVersionsAndProducer) {
  Model model = read(Msg().varint(1, 3).text(2, "old").varint(5, 4).sub(7, graph_with({})).sub(8, Msg().varint(2, 7)));
  model.set_ir_version(8);
  model.set_producer("detent", "0.1");
  model.set_opset("", 13);
  model.set_opset("com.microsoft", 1);
  const Model again = read(encode_model(model, nullptr));
  EXPECT_EQ(again.ir_version, 8);
  EXPECT_EQ(again.opset(), 13);
  EXPECT_EQ(again.opset("com.microsoft"), 1);
  EXPECT_EQ(again.opset("unknown"), 0);
  const std::string bytes = encode_model(again, nullptr);
  EXPECT_EQ(bytes.find("old"), std::string::npos);
  EXPECT_NE(bytes.find("detent"), std::string::npos);
}

}  // namespace
}  // namespace detent::onnx::test
