// Writing: whole or not at all, data beside the model, and sizes that protobuf does not hold.
#include "onnx/write.h"
#include "base/file.h"

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

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

}  // namespace
}  // namespace detent::onnx::test
