// Which external data are accepted, and that nothing outside of the model's own directory is ever read.
#include "onnx/tensor.h"

#include <sys/stat.h>
#include <unistd.h>

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

using Entries = std::vector<std::pair<std::string, std::string>>;

class External : public ModelTest {
 protected:
  void SetUp() override { write_file(at("m/w.bin"), raw_bytes<float>({1, 2, 3, 4})); }

  static Msg model_with(const Entries& entries, const std::vector<std::int64_t>& dims = {2}) {
    Msg tensor = tensor_head("w", DataType::float32, dims);
    for (const auto& [key, value] : entries) tensor.sub(13, entry(key, value));
    return model_of(graph_with({tensor.varint(14, 1)}));
  }
  Tensor load(const Entries& entries, const std::vector<std::int64_t>& dims = {2},
              const std::string& path = "m/model.onnx") const {
    write_file(at(path), model_with(entries, dims).bytes);
    return read_model(at(path)).graph.initializers.at(0);
  }
  void refuse(const Entries& entries, const std::string& part) const {
    expect_error([&] { load(entries); }, part);
  }
};

TEST_F(External, ReadsWhereItIsTold) {
  EXPECT_EQ(elements<float>(load({{"location", "w.bin"}, {"offset", "4"}, {"length", "8"}})),
            (std::vector<float>{2, 3}));
  EXPECT_EQ(elements<float>(load({{"location", "./w.bin"}})), (std::vector<float>{1, 2}))
      << "no length: what the shape needs";
  EXPECT_EQ(elements<float>(load({{"location", "w.bin"}, {"checksum", "x"}, {"basepath", "y"}})).size(), 2U);
  EXPECT_EQ(elements<float>(load({{"location", "w.bin"}, {"offset", "16"}}, {0})).size(), 0U) << "at the very end";
  write_file(at("m/sub/v.bin"), raw_bytes<float>({5, 6}));
  EXPECT_EQ(elements<float>(load({{"location", "sub/v.bin"}})), (std::vector<float>{5, 6}));
  EXPECT_TRUE(load({{"location", "w.bin"}}).is_external);
}

TEST_F(External, RefusesWhatTheFileDoesNotHold) {
  refuse({{"location", "w.bin"}, {"offset", "12"}}, "at offset 12 need 8 bytes");
  refuse({{"location", "w.bin"}, {"offset", "17"}}, "at offset 17");
  refuse({{"location", "w.bin"}, {"offset", "18446744073709551615"}}, "need 8 bytes");
  refuse({{"location", "w.bin"}, {"offset", "18446744073709551616"}}, "not a whole number");
  refuse({{"location", "w.bin"}, {"length", "9223372036854775807"}}, "length is 9223372036854775807 bytes");
  refuse({{"location", "w.bin"}, {"length", "4"}}, "length is 4 bytes");
  for (const auto* number : {"-1", "", " 1", "1 ", "0x10", "1e3", "ten", "+1", "1.0"}) {
    refuse({{"location", "w.bin"}, {"offset", number}}, "not a whole number");
    refuse({{"location", "w.bin"}, {"length", number}}, "not a whole number");
  }
  refuse({{"location", "w.bin"}, {"__class__", "x"}}, "unknown external data key");
  refuse({{"location", "w.bin"}, {"Offset", "0"}}, "unknown external data key");
  expect_error([&] { load({{"location", "w.bin"}}, {1LL << 50}); }, "need 4503599627370496 bytes");
  write_file(at("m/empty.bin"), "");
  refuse({{"location", "empty.bin"}}, "has 0");
}

TEST_F(External, RefusesPathsThatLeaveTheDirectory) {
  write_file(at("secret.bin"), raw_bytes<float>({7, 8}));
  fs::create_directory(at("outside"));
  write_file(at("outside/v.bin"), raw_bytes<float>({7, 8}));
  write_file(at("m2/v.bin"), raw_bytes<float>({7, 8}));
  for (const std::string& location :
       {std::string(), at("m/w.bin").string(), std::string("/etc/passwd"), std::string("../secret.bin"),
        std::string("sub/../w.bin"), std::string("./../m/w.bin"), std::string(".."), std::string("w.bin\0.txt", 10),
        std::string("a\n../secret.bin")}) {
    refuse({{"location", location}}, "external data");
  }
  refuse({}, "external data file '' is not a path");
  fs::create_symlink("../secret.bin", at("m/link.bin"));
  refuse({{"location", "link.bin"}}, "leads outside");
  fs::create_directory_symlink("../outside", at("m/folder"));
  refuse({{"location", "folder/v.bin"}}, "leads outside");
  fs::create_directory_symlink("../m2", at("m/near"));  // a directory whose name only begins with the model's
  refuse({{"location", "near/v.bin"}}, "leads outside");
  fs::create_symlink("link.bin", at("m/twice.bin"));
  refuse({{"location", "twice.bin"}}, "leads outside");
}

TEST_F(External, RefusesWhatIsNotAFile) {
  refuse({{"location", "missing.bin"}}, "cannot be opened");
  refuse({{"location", "."}}, "is a directory");
  refuse({{"location", std::string(5000, 'a')}}, "cannot be opened");
  ASSERT_EQ(::mkfifo(at("m/fifo").c_str(), 0600), 0);
  refuse({{"location", "fifo"}}, "not a regular file");
  fs::create_symlink("loop", at("m/loop"));
  refuse({{"location", "loop"}}, "cannot be opened");
}

TEST_F(External, RefusesFilesWithOtherNames) {
  write_file(at("secret.bin"), raw_bytes<float>({7, 8}));
  fs::create_hard_link(at("secret.bin"), at("m/hard.bin"));
  refuse({{"location", "hard.bin"}}, "has 2 hard links");
  fs::remove(at("secret.bin"));
  EXPECT_NO_THROW(load({{"location", "hard.bin"}})) << "the only name that is left";
}

TEST_F(External, KeepsTheFileThatItOpened) {
  const Tensor before = load({{"location", "w.bin"}});
  write_file(at("m/other.bin"), raw_bytes<float>({9, 9, 9, 9}));
  fs::rename(at("m/other.bin"), at("m/w.bin"));
  float first = 0;
  ASSERT_EQ(::pread(before.data.file()->descriptor(), &first, sizeof first, 0), 4);
  EXPECT_EQ(first, 1) << "not what stands at the path by now";
}

TEST_F(External, FollowsLinksOfAModelCache) {
  // models--x/snapshots/rev/model.onnx -> ../../blobs/1, model.onnx_data -> ../../blobs/2
  write_file(at("cache/blobs/1"), model_with({{"location", "model.onnx_data"}}).bytes);
  write_file(at("cache/blobs/2"), raw_bytes<float>({1, 2}));
  fs::create_directories(at("cache/snapshots/rev"));
  fs::create_symlink("../../blobs/1", at("cache/snapshots/rev/model.onnx"));
  fs::create_symlink("../../blobs/2", at("cache/snapshots/rev/model.onnx_data"));
  const Model model = read_model(at("cache/snapshots/rev/model.onnx"));
  EXPECT_EQ(elements<float>(model.graph.initializers.at(0)), (std::vector<float>{1, 2}));
  // The same links do not help a model that is a file of its own.
  fs::remove(at("cache/snapshots/rev/model.onnx"));
  fs::copy_file(at("cache/blobs/1"), at("cache/snapshots/rev/model.onnx"));
  expect_error([&] { read_model(at("cache/snapshots/rev/model.onnx")); }, "leads outside");
}

TEST_F(External, WorksInTheCurrentDirectory) {
  write_file(at("m/model.onnx"), model_with({{"location", "w.bin"}}).bytes);
  const fs::path before = fs::current_path();
  fs::current_path(at("m"));
  EXPECT_NO_THROW(read_model("model.onnx"));
  fs::current_path(before);
}

TEST_F(External, OpensEachFileOnce) {
  write_file(
      at("m/model.onnx"),
      model_of(graph_with({tensor_head("a", DataType::float32, {1}).sub(13, entry("location", "w.bin")).varint(14, 1),
                           tensor_head("b", DataType::float32, {1}).sub(13, entry("location", "w.bin")).varint(14, 1)}))
          .bytes);
  const Model model = read_model(at("m/model.onnx"));
  EXPECT_EQ(model.graph.initializers[0].data.file(), model.graph.initializers[1].data.file());
}

TEST_F(External, ComesInlineWhenWritten) {
  write_file(at("m/model.onnx"), model_with({{"location", "w.bin"}, {"offset", "4"}}).bytes);
  write_model(read_model(at("m/model.onnx")), at("alone.onnx"));
  fs::remove_all(at("m"));
  const Model alone = read_model(at("alone.onnx"));
  EXPECT_FALSE(alone.graph.initializers.at(0).is_external);
  EXPECT_EQ(elements<float>(alone.graph.initializers.at(0)), (std::vector<float>{2, 3}));
}

}  // namespace
}  // namespace detent::onnx::test
