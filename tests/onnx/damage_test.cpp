// Files that are not sound models: always detent::Error, whatever is wrong.
#include <sys/stat.h>

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

class Damage : public ModelTest {};

Msg sound_model() {
  const Msg attribute = attribute_head("axes").packed(8, {1, 300, -1}).varint(20, 7);
  const Msg n = node("Squeeze", {"x"}, {"y"}, {attribute}).text(3, "node");
  const Msg graph = Msg()
                        .sub(1, n)
                        .text(2, "g")
                        .sub(5, tensor_head("w", DataType::float32, {2}).text(4, raw_bytes<float>({1, 2})))
                        .sub(5, tensor_head("i", DataType::int64, {1}).packed(7, {1LL << 40}))
                        .sub(11, value_info("x", DataType::float32, {1, 300}))
                        .sub(12, value_info("y"));
  return model_of(graph).sub(14, entry("k", "v"));
}

// Reads everything there is to read; only Error may come out.
void read_all(const Model& model) {
  for (const auto& n : model.graph.nodes) {
    for (const auto& a : n.attributes()) {
      for (const auto& read : std::initializer_list<std::function<void()>>{
               [&] { a.as_int(); }, [&] { a.as_float(); }, [&] { a.as_string(); }, [&] { a.as_ints(); },
               [&] { a.as_floats(); }, [&] { read_attribute_tensor(model, n, a); },
               [&] {
                 for (const auto& g : a.as_graphs()) read_graph(g, model.file, *model.external, "body");
               }}) {
        try {
          read();
        } catch (const Error&) {
        }
      }
    }
  }
  encode_model(model, nullptr);
}

TEST_F(Damage, TruncatedAnywhere) {
  const std::string whole = sound_model().bytes;
  read_all(read(whole));
  std::size_t refused = 0;
  for (std::size_t n = 0; n < whole.size(); ++n) {
    try {
      read_all(read(whole.substr(0, n)));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input) << e.what();
      ++refused;
    }
  }
  // Only a cut behind the opset import, between two fields, leaves a sound model: here before metadata_props.
  EXPECT_GE(refused, whole.size() - 1);
}

TEST_F(Damage, AnyByteChanged) {
  const std::string whole = sound_model().bytes;
  for (std::size_t n = 0; n < whole.size(); ++n) {
    for (const int flip : {0x01, 0x02, 0x04, 0x08, 0x80, 0xff}) {
      std::string damaged = whole;
      damaged[n] = static_cast<char>(damaged[n] ^ flip);
      try {
        read_all(read(damaged));
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::bad_input) << e.what();
      }
    }
  }
}

TEST_F(Damage, WrongWireTypes) {
  // Every field of every message as a varint, a fixed number and an empty message: carried as unknown or refused, never
  // misread.
  for (std::uint32_t number = 1; number <= 26; ++number) {
    for (const Msg& field :
         {Msg().varint(number, 1), Msg().fixed32(number, 1), Msg().fixed64(number, 1), Msg().text(number, "")}) {
      Msg attribute = attribute_head("a"), tensor = tensor_head("w", DataType::float32, {}), graph, model;
      tensor.bytes += field.bytes;
      attribute.bytes += field.bytes;
      graph.sub(1, node("Any", {"x"}, {"y"}, {attribute})).sub(1, field).sub(5, tensor).sub(11, field);
      graph.bytes += field.bytes;
      model.varint(1, 8).sub(7, graph).sub(8, Msg().varint(2, 17)).sub(8, field);
      model.bytes += field.bytes;
      try {
        read_all(read(model));
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::bad_input) << e.what();
      }
    }
  }
}

TEST_F(Damage, NotAModel) {
  expect_bad("", "is empty");
  expect_bad("This is a text file, not a model.\n");
  expect_bad(std::string(1000, '\0'));
  expect_bad(std::string(1000, '\xff'));
  expect_bad("\x08\x08", "it has no graph");
  expect_bad(Msg().varint(1, 8).sub(7, graph_with({})).bytes, "imports no opset");
  expect_bad(model_of(graph_with({})).sub(7, Msg()).bytes, "more than one graph");
  expect_bad("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n");
  expect_error([&] { read_model(at("missing.onnx")); }, "No such file");
  fs::create_directory(at("folder"));
  expect_error([&] { read_model(at("folder")); }, "is a directory");
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  expect_error([&] { read_model(at("fifo")); }, "not a regular file");
  fs::create_symlink("nowhere", at("dangling"));
  expect_error([&] { read_model(at("dangling")); }, "No such file");
  fs::create_symlink("loop", at("loop"));
  expect_error([&] { read_model(at("loop")); }, "symbolic links");
}

TEST_F(Damage, DeeplyNestedBodies) {
  Msg graph = graph_with({});
  const auto nest = [&](int times) {
    for (int i = 0; i < times; ++i) {
      graph = Msg()
                  .sub(1, node("If", {"x"}, {"y"}, {attribute_head("then_branch").sub(6, graph).varint(20, 5)}))
                  .sub(11, value_info("x"))
                  .sub(12, value_info("y"));
    }
  };
  nest(60);
  const Msg message = model_of(graph);
  EXPECT_EQ(encode_model(read(message), nullptr), message.bytes);
  nest(1000);
  expect_error([&] { read(model_of(graph)); }, "nested more than 64 deep");
}

TEST_F(Damage, LengthsBeyondTheFile) {
  // Field 7 with a length of 2^63, 2^32 and one more than there is.
  expect_bad(std::string("\x08\x08\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 12));
  expect_bad(std::string("\x08\x08\x3a\x80\x80\x80\x80\x10", 8));
  expect_bad(std::string("\x08\x08\x3a\x02\x00", 5));
  // A packed run whose length is not a multiple of its elements', and a varint without an end inside of one.
  const Msg floats = attribute_head("v").text(7, "abcde").varint(20, 6);
  const Msg ints = attribute_head("w").text(8, "\xff\xff").varint(20, 7);
  const Model model = read(model_of(Msg().sub(1, node("Any", {"x"}, {"y"}, {floats, ints}))));
  expect_error([&] { model.graph.nodes[0].attribute("v")->as_floats(); });
  expect_error([&] { model.graph.nodes[0].attribute("w")->as_ints(); });
}

}  // namespace
}  // namespace detent::onnx::test
