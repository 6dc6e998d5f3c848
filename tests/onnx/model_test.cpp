#include <sys/mount.h>
#include <unistd.h>
#include <algorithm>

#include "base/file.h"
#include "onnx/functions.h"
#include "onnx/support.h"
#include "onnx/write.h"

namespace detent::onnx::test {
namespace {

// What detent does not change it writes back byte for byte.

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

// Writing: whole or not at all, data beside the model, and sizes that protobuf does not hold.

class Write : public ModelTest {
 protected:
  static Msg weights(const std::string& name, std::size_t count, float first) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
    return tensor_head(name, DataType::float32, {static_cast<std::int64_t>(count)})
        .text(9, raw_bytes(values))
        .text(12, "doc of " + name);
  }
  Model some_model() const {
    return read(model_of(graph_with(
        {weights("small", 3, 0), weights("a", 1000, 10), weights("big", 300000, 20), weights("b", 999, 30)})));
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& e : fs::directory_iterator(at("out"))) names.push_back(e.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(Write, SharedDataLieOnceBesideTheModel) {
  fs::create_directory(at("out"));
  Model model = some_model();
  int produced = 0;
  const auto made = TensorData::produced(4000, [&produced](const Sink& sink) {
    ++produced;
    sink(std::vector<std::byte>(4000, std::byte{7}));
  });
  auto& tensors = model.graph.initializers;
  tensors.push_back({"first", DataType::float32, {1000}, made, {}, false});
  tensors.push_back({"second", DataType::float32, {10, 100}, made, {}, false});
  tensors.push_back({"a again", DataType::float32, {1000}, tensors[1].data, {}, false});
  write_model(model, at("out/q.onnx"), {std::uint64_t{1024}});
  EXPECT_EQ(produced, 1);
  const Model again = read_model(at("out/q.onnx"));
  const auto data = [&](std::size_t i) { return again.graph.initializers[i].data.bytes(); };
  EXPECT_EQ(data(4).data(), data(5).data());
  EXPECT_EQ(data(1).data(), data(6).data());
  EXPECT_NE(data(1).data(), data(4).data());
  EXPECT_EQ(again.graph.initializers[5].data.identity(), again.graph.initializers[4].data.identity());

  write_model(model, at("out/inside.onnx"));
  const Model inside = read_model(at("out/inside.onnx"));
  EXPECT_TRUE(std::ranges::equal(inside.graph.initializers[5].data.bytes(), data(4)));
}

TEST_F(Write, PutsLargeTensorsBesideTheModel) {
  fs::create_directory(at("out"));
  const Model model = some_model();
  const WrittenModel written = write_model(model, at("out/q.onnx"), {std::uint64_t{1024}});
  EXPECT_EQ(files(), (std::vector<std::string>{"q.onnx", written.data_file.filename()}));
  EXPECT_TRUE(is_own_data_name("q.onnx", written.data_file.filename().string())) << written.data_file;
  EXPECT_EQ(written.model_bytes, fs::file_size(at("out/q.onnx")));
  EXPECT_EQ(written.data_bytes, fs::file_size(written.data_file));
  EXPECT_LT(written.model_bytes, 2048U);

  fs::rename(at("out"), at("elsewhere"));  // the location is relative
  const Model again = read_model(at("elsewhere/q.onnx"));
  ASSERT_EQ(again.graph.initializers.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const Tensor& before = model.graph.initializers[i];
    const Tensor& after = again.graph.initializers[i];
    EXPECT_EQ(after.name, before.name);
    EXPECT_EQ(after.is_external, before.data.size() >= 1024);
    EXPECT_EQ(elements<float>(after), elements<float>(before));
    EXPECT_NE(after.raw.view().find("doc of " + before.name), std::string_view::npos);
    if (!after.is_external) continue;
    const auto offset = after.data.file()->offset_of(after.data.bytes());
    EXPECT_EQ(offset % (after.data.size() >= (1U << 20) ? 4096 : 64), 0U) << after.name;
  }
  // And back into one file.
  write_model(again, at("whole.onnx"));
  fs::remove_all(at("elsewhere"));
  EXPECT_EQ(elements<float>(read_model(at("whole.onnx")).graph.initializers[2]),
            elements<float>(model.graph.initializers[2]));
}

TEST_F(Write, GivesTheSameBytesTwice) {
  const Model model = some_model();
  std::vector<fs::path> data;
  for (const auto* folder : {"1", "2"}) {
    fs::create_directory(at(folder));
    data.push_back(write_model(model, at(folder) / "q.onnx", {std::uint64_t{1024}}).data_file);
  }
  EXPECT_EQ(read_file(at("1/q.onnx")), read_file(at("2/q.onnx")));
  EXPECT_EQ(data[0].filename(), data[1].filename());
  EXPECT_EQ(read_file(data[0]), read_file(data[1]));
}

TEST_F(Write, RemovesTheDataOfTheModelThatItReplaces) {
  fs::create_directory(at("out"));
  const WriteOptions apart{std::uint64_t{1024}};
  const auto first = write_model(some_model(), at("out/q.onnx"), apart).data_file;
  write_file(at("out/q.onnx.0123456789abcdef.data"), "no model refers to this");
  Model other = some_model();
  other.graph.initializers.pop_back();
  const auto second = write_model(other, at("out/q.onnx"), apart).data_file;
  EXPECT_NE(first, second);
  EXPECT_EQ(files().size(), 3U);
  EXPECT_FALSE(fs::exists(first));
  EXPECT_EQ(write_model(other, at("out/q.onnx"), apart).data_file, second) << "the same data keep their file";
  EXPECT_EQ(read_model(at("out/q.onnx")).graph.initializers.size(), 3U);
  write_model(other, at("out/q.onnx"));
  EXPECT_EQ(files(), (std::vector<std::string>{"q.onnx", "q.onnx.0123456789abcdef.data"}));
}

TEST_F(Write, LeavesDataOfOthersAlone) {
  fs::create_directory(at("out"));
  for (const std::string name :
       {"q.onnx.data", "weights.bin", "q.onnx.0123456789ABCDEF.data", "p.onnx.0123456789abcdef.data"}) {
    write_file(at("out/" + name), raw_bytes<float>({1, 2}));
    const Msg t = tensor_head("w", DataType::float32, {2}).sub(13, entry("location", name)).varint(14, 1);
    write_file(at("out/q.onnx"), model_of(graph_with({t})).bytes);
    EXPECT_TRUE(own_data_files(at("out/q.onnx")).empty());
    write_model(some_model(), at("out/q.onnx"));
    EXPECT_TRUE(fs::exists(at("out/" + name)));
  }
  const WrittenModel fixed = write_model(some_model(), at("out/q.onnx"), {std::uint64_t{0}, ".data"});
  EXPECT_EQ(fixed.data_file.filename(), "q.onnx.data");
}

TEST_F(Write, ALockedDirectoryOnlyKeepsTheOldData) {
  fs::create_directory(at("out"));
  const auto first = write_model(some_model(), at("out/q.onnx"), {std::uint64_t{1024}}).data_file;
  const UniqueFd held = lock_directory(at("out"));
  ASSERT_TRUE(held.valid());
  write_model(some_model(), at("out/q.onnx"));
  EXPECT_TRUE(fs::exists(first));
  EXPECT_FALSE(read_model(at("out/q.onnx")).graph.initializers.at(1).is_external);
}

// Runtimes read such tensors while they load a model, and not from other files.
TEST_F(Write, KeepsInlineWhatShapesMayFollowFrom) {
  const Model model =
      read(model_of(graph_with({tensor_head("e", DataType::float32, {0}), weights("a", 1, 1), weights("b", 50, 5)})));
  write_model(model, at("q.onnx"), {std::uint64_t{0}});
  const Model again = read_model(at("q.onnx"));
  EXPECT_FALSE(again.graph.initializers[0].is_external);
  EXPECT_FALSE(again.graph.initializers[1].is_external);
  EXPECT_TRUE(again.graph.initializers[2].is_external);
}

TEST_F(Write, RefusesPlacesThatCannotBeWritten) {
  const Model model = some_model();
  expect_error([&] { write_model(model, at("missing/q.onnx")); }, "missing/q.onnx", ErrorKind::usage);
  fs::create_directory(at("folder"));
  expect_error([&] { write_model(model, at("folder")); }, "folder", ErrorKind::usage);
  EXPECT_TRUE(fs::is_empty(at("folder")));
}

TEST_F(Write, LeavesTheTargetAloneWhenAProducerFails) {
  fs::create_directory(at("out"));
  write_file(at("out/q.onnx"), "old model");
  write_file(at("out/q.onnx.data"), "old data");
  Model model = some_model();
  Tensor t{"p",       DataType::uint8,
           {1 << 20}, TensorData::produced(1 << 20, [](const Sink&) { throw std::runtime_error("no"); }),
           {},        false};
  model.graph.initializers.push_back(t);
  for (const auto threshold : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(1024)}) {
    EXPECT_THROW(write_model(model, at("out/q.onnx"), {threshold}), std::runtime_error);
    EXPECT_EQ(read_file(at("out/q.onnx")), "old model");
    EXPECT_EQ(read_file(at("out/q.onnx.data")), "old data");
    EXPECT_EQ(files().size(), 2U) << "temporary files are gone";
  }
}

TEST_F(Write, LeavesTheTargetAloneWhenTheDiskIsFull) {
  fs::create_directory(at("out"));
  if (::mount("tmpfs", at("out").c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "a small file system needs root";
  write_file(at("out/q.onnx"), "old model");
  for (const auto threshold : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(1024)}) {
    expect_error([&] { write_model(some_model(), at("out/q.onnx"), {threshold}); }, "No space left",
                 ErrorKind::resource);
    EXPECT_EQ(read_file(at("out/q.onnx")), "old model");
    EXPECT_EQ(files().size(), 1U);
  }
  ::umount(at("out").c_str());
}

TEST_F(Write, ModelsBeyondTwoGibibytesGoBeside) {
  constexpr std::uint64_t kBytes = std::uint64_t{1100} << 20;
  if (fs::space(at(".")).available < (std::uint64_t{6} << 30)) GTEST_SKIP() << "needs 6 GiB of free disk";
  Model model = some_model();
  // Each 4 MiB piece carries its number; the rest stays zero.
  const auto produce = [](const Sink& sink) {
    std::vector<std::byte> piece(std::size_t{4} << 20);
    for (std::uint32_t i = 0; i < kBytes / piece.size(); ++i) {
      std::memcpy(piece.data(), &i, sizeof i);
      sink(piece);
    }
  };
  for (const auto* name : {"p", "q"}) {
    model.graph.initializers.push_back(
        {name, DataType::uint8, {static_cast<std::int64_t>(kBytes)}, TensorData::produced(kBytes, produce), {}, false});
  }
  expect_error([&] { encode_model(model, nullptr); }, "2 GiB", ErrorKind::resource);
  const WrittenModel written = write_model(model, at("huge.onnx"));
  EXPECT_GT(written.data_bytes, 2 * kBytes);
  EXPECT_LT(written.model_bytes, 4096U);
  const Model again = read_model(at("huge.onnx"));
  for (const std::size_t t : {std::size_t{4}, std::size_t{5}}) {
    const auto bytes = again.graph.initializers.at(t).data.bytes();
    ASSERT_EQ(bytes.size(), kBytes);
    for (std::uint32_t i = 0; i < kBytes >> 22; ++i) {
      std::uint32_t number = 0;
      std::memcpy(&number, bytes.data() + (std::size_t{i} << 22), sizeof number);
      ASSERT_EQ(number, i);
    }
  }
  EXPECT_EQ(elements<float>(again.graph.initializers[2]), elements<float>(model.graph.initializers[2]));
}

// Functions of a model: how many nodes they come to, and where they may not be.

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

// Which values a node may read, for every kind of graph that stands in another one.

using Names = std::vector<std::string>;

Msg body_attribute(const std::string& name, const Msg& graph) {
  return attribute_head(name).sub(6, graph).varint(20, 5);
}

// A graph of nodes with an input "in", a constant "c" and outputs.
Msg body(const std::vector<Msg>& nodes, const Names& outputs) {
  Msg m;
  for (const auto& n : nodes) m.sub(1, n);
  m.text(2, "body").sub(5, tensor_head("c", DataType::float32, {1}).text(9, std::string(4, '\0')));
  m.sub(11, value_info("in"));
  for (const auto& name : outputs) m.sub(12, value_info(name));
  return m;
}

// How a body gets into a model: `whole` gives the main graph, or a function's, of the node that holds the body and of
// those beside it.
struct Kind {
  std::string name;
  std::function<Msg(const Names& inputs, const Names& outputs, const Msg& body)> holder;
  std::function<Msg(const std::vector<Msg>& nodes, const std::string& output)> whole;
};

Msg in_graph(const std::vector<Msg>& nodes, const std::string& output) {
  Msg m;
  for (const auto& n : nodes) m.sub(1, n);
  return model_of(m.text(2, "g").sub(11, value_info("x")).sub(12, value_info(output)));
}

Msg in_function(const std::vector<Msg>& nodes, const std::string& output) {
  Msg f = Msg().text(1, "f").text(4, "x").text(5, output).text(10, "own");
  for (const auto& n : nodes) f.sub(7, n);
  return in_graph({node("f", {"x"}, {"called"}).text(7, "own")}, "called").sub(25, f);
}

Msg in_body(const std::vector<Msg>& nodes, const std::string& output) {
  Msg graph = Msg().text(2, "outer").sub(12, value_info(output));
  for (const auto& n : nodes) graph.sub(1, n);
  return in_graph({node("If", {"x"}, {"outside"}, {body_attribute("then_branch", graph)})}, "outside");
}

Msg holder(const std::string& op_type, const std::string& attribute, const Names& inputs, const Names& outputs,
           const Msg& graph) {
  return node(op_type, inputs, outputs, {body_attribute(attribute, graph)}).text(3, "holder");
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  const std::vector<std::pair<std::string, std::string>> holders{
      {"If", "then_branch"}, {"If", "else_branch"}, {"Loop", "body"}, {"Scan", "body"}, {"Custom", "anything"}};
  const std::vector<std::pair<std::string, decltype(&in_graph)>> places{
      {"graph", in_graph}, {"function", in_function}, {"body", in_body}};
  for (const auto& [op_type, attribute] : holders) {
    for (const auto& [place, whole] : places) {
      all.push_back({op_type + "_" + attribute + "_in_" + place,
                     [op_type = op_type, attribute = attribute](const auto& i, const auto& o, const auto& b) {
                       return holder(op_type, attribute, i, o, b);
                     },
                     whole});
    }
  }
  return all;
}

class Scope : public ModelTest, public ::testing::WithParamInterface<Kind> {
 protected:
  Msg whole(const std::vector<Msg>& nodes, const std::string& output = "y") const {
    return GetParam().whole(nodes, output);
  }
  Msg holds(const std::vector<Msg>& nodes, const Names& outputs = {"made"}, const Names& inputs = {"r"}) const {
    return GetParam().holder(inputs, {"y"}, body(nodes, outputs));
  }
  void refuses(const std::vector<Msg>& nodes, const std::string& told, const std::string& output = "y") const {
    expect_error([&] { read(whole(nodes, output)); }, told);
  }
  void takes(const std::vector<Msg>& nodes) const {
    const Msg message = whole(nodes);
    EXPECT_EQ(encode_model(read(message), nullptr), message.bytes);
  }
  const Msg relu = node("Relu", {"x"}, {"r"});
  const Msg made = node("Relu", {"in"}, {"made"});
};

TEST_P(Scope, AllowsWhatStandsAround) {
  takes({relu, holds({node("Add", {"r", "x"}, {"a"}), node("Add", {"a", "c"}, {"made"})})});
  takes({relu, holds({}, {"r"})});
  takes({relu, holds({}, {"in", "in", "c"})});
}

TEST_P(Scope, AllowsNamesAgainAndAnySequence) {
  takes({relu, holds({node("Neg", {"in"}, {"r"}), node("Neg", {"r"}, {"made"})})});
  takes({relu, holds({node("Neg", {"a"}, {"made"}), node("Neg", {"in"}, {"a"})})});
  takes({holds({made}), relu});
  const Msg twin = GetParam().holder({"r"}, {"z"}, body({made}, {"made"}));
  takes({relu, holds({made}), twin});
}

TEST_P(Scope, RefusesValuesOfABodyOutsideOfIt) {
  for (const std::string name : {"made", "in", "c"}) {
    const auto told = "input '" + name + "' is a value of a body that it does not stand in";
    refuses({relu, holds({made}, {"made"}, {name})}, "'holder': " + told);
    refuses({relu, holds({made}), node("Relu", {name}, {"z"}).text(3, "after")}, "Relu 'after': " + told);
    refuses({node("Relu", {name}, {"r"}).text(3, "before"), holds({made})}, "Relu 'before': " + told);
    const Msg sibling = GetParam().holder({"r"}, {"z"}, Msg().sub(1, node("Neg", {name}, {"z2"}).text(3, "beside")));
    refuses({relu, holds({made}), sibling}, "Neg 'beside': " + told);
  }
  refuses({relu, holds({made})}, "output 'made' ", "made");
}

TEST_P(Scope, RefusesOutputsOfABodyThatAreOfOthers) {
  const Msg sibling = GetParam().holder({"r"}, {"z"}, Msg().sub(12, value_info("made")));
  refuses({relu, holds({made}), sibling}, "'holder': output 'made' of its body is a value of a body");
  refuses({relu, holds({made}, {"nowhere"})}, "'holder': output 'nowhere' of its body is not defined anywhere");
}

TEST_P(Scope, RefusesValuesThatNobodyMakes) {
  refuses({relu, holds({node("Neg", {"nowhere"}, {"made"}).text(3, "n")})}, "Neg 'n': input 'nowhere' is not defined");
}

TEST_P(Scope, RefusesValuesMadeOfThemselves) {
  refuses({relu, holds({node("Neg", {"y"}, {"made"})})}, "'holder': the graph has a cycle: 'y'");
  refuses({relu, holds({made, node("Neg", {"y"}, {"unread"})})}, "'holder': the graph has a cycle: 'y'");
  refuses({relu, holds({made, node("Neg", {"b"}, {"a"}).text(3, "n"), node("Neg", {"a"}, {"b"}).text(3, "n")})},
          "Neg 'n': the graph has a cycle");
  refuses({holds({node("Neg", {"z"}, {"made"})}), relu, node("Neg", {"y"}, {"z"})}, "the graph has a cycle");
}

TEST_P(Scope, RefusesNamesDefinedTwiceInOneGraph) {
  refuses({relu, holds({made, node("Neg", {"in"}, {"made"}).text(3, "n")})}, "Neg 'n': output 'made' is already");
  for (const std::string name : {"in", "c"})
    refuses({relu, holds({made, node("Neg", {"in"}, {name}).text(3, "n")})}, "Neg 'n': output '" + name + "' is");
}

TEST_P(Scope, RefusesWhatCouldBeEitherOfTwoValues) {
  refuses({relu, holds({node("Neg", {"r"}, {"made"}).text(3, "n"), node("Neg", {"in"}, {"r"})})},
          "Neg 'n': input 'r' is read before its own graph defines it");
}

INSTANTIATE_TEST_SUITE_P(Kinds, Scope, ::testing::ValuesIn(kinds()), [](const auto& kind) { return kind.param.name; });

using ScopeOfTwoBodies = ModelTest;

// ONNX Runtime hands a value that one branch reads to both, and computes with it in place of the constant.
TEST_F(ScopeOfTwoBodies, AConstantHasNoNameThatTheOtherReadsFromAround) {
  const auto model = [](const std::string& around, const Msg& other) {
    const Msg constant = body({node("Neg", {"c"}, {"made"})}, {"made"});
    const Msg both =
        node("If", {"x"}, {"y"}, {body_attribute("then_branch", constant), body_attribute("else_branch", other)});
    return in_graph({node("Relu", {"x"}, {around}), Msg(both).text(3, "both")}, "y");
  };
  const Msg reads = Msg().sub(1, node("Neg", {"c"}, {"b"})).sub(12, value_info("b"));
  const Msg deeper =
      Msg().sub(1, node("If", {"x"}, {"b"}, {body_attribute("then_branch", reads)})).sub(12, value_info("b"));
  for (const auto& other : {reads, deeper, Msg().sub(12, value_info("c"))})
    expect_error(
        [&] { read(model("c", other)); },
        "If 'both': one of its bodies has a constant 'c', and another reads the value of that name around them");
  try {
    read(model("c", reads));
  } catch (const Error& e) {
    EXPECT_EQ(e.hint(), "give each value a name of its own");
  }
  EXPECT_NO_THROW(read(model("c", body({node("Neg", {"c"}, {"b"})}, {"b"}))));
  EXPECT_NO_THROW(read(model("c", Msg().sub(1, node("Neg", {"x"}, {"b"})).sub(12, value_info("b")))));
}

using ScopeOfFunctions = ModelTest;

TEST_F(ScopeOfFunctions, SeeNothingAroundThem) {
  const auto model = [](const Msg& function) {
    return in_graph({node("Relu", {"x"}, {"r"}), node("f", {"r"}, {"y"}).text(7, "own")}, "y").sub(25, function);
  };
  const Msg head = Msg().text(1, "f").text(4, "p").text(5, "q").text(10, "own");
  EXPECT_NO_THROW(read(model(Msg(head).sub(7, node("Neg", {"p"}, {"q"})))));
  const Msg outer = node("Add", {"p", "r"}, {"q"}).text(3, "n");
  expect_error([&] { read(model(Msg(head).sub(7, outer))); }, "function 'f', node Add 'n': input 'r' is not defined");
  expect_error([&] { read(model(head)); }, "function 'f', output 'q' is not defined");
}

TEST_F(ScopeOfFunctions, AndOfBodiesAreCheckedInLinearTime) {
  Msg graph = Msg().text(2, "wide").sub(12, value_info("v49999"));
  for (int i = 0; i < 50'000; ++i) {
    const auto name = "v" + std::to_string(i);
    const Msg branch =
        Msg().sub(1, node("Neg", {i == 0 ? "x" : "v" + std::to_string(i - 1)}, {"a"})).sub(12, value_info("a"));
    graph.sub(1, node("If", {"x"}, {name}, {body_attribute("then_branch", branch)}));
  }
  EXPECT_NO_THROW(read(in_graph({node("If", {"x"}, {"y"}, {body_attribute("then_branch", graph)})}, "y")));
}

}  // namespace
}  // namespace detent::onnx::test
