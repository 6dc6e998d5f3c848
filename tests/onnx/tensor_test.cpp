#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>
#include <cmath>
#include <limits>

#include "onnx/model_read.h"
#include "onnx/packed_numbers.h"
#include "onnx/support.h"
#include "onnx/tensor.h"

namespace detent::onnx::test {
namespace {

// Every way in which a TensorProto may hold its elements, and every way in which it may lie about them.

using Ints = std::vector<std::int64_t>;

class TensorTest : public ModelTest {
 protected:
  Ints ints(const Msg& tensor) const { return to_int64s(read_initializer(tensor)); }
};

TEST_F(TensorTest, ReadsFloats) {
  const std::vector<float> want{1, -2.5F, 3};
  for (const Msg& m : {tensor_head("w", DataType::float32, {3}).text(9, raw_bytes(want)),
                       tensor_head("w", DataType::float32, {3}).text(4, raw_bytes(want)),
                       tensor_head("w", DataType::float32, {3}).fixed32(4, 1).fixed32(4, -2.5F).fixed32(4, 3),
                       tensor_head("w", DataType::float32, {3}).fixed32(4, 1).text(4, raw_bytes<float>({-2.5F, 3})),
                       tensor_head("w", DataType::float32, {3}).text(4, raw_bytes<float>({1, -2.5F})).fixed32(4, 3),
                       tensor_head("w", DataType::float32, {3})
                           .text(4, raw_bytes<float>({1}))
                           .text(4, raw_bytes<float>({-2.5F, 3}))}) {
    EXPECT_EQ(elements<float>(read_initializer(m)), want);
  }
  EXPECT_EQ(elements<double>(read_initializer(tensor_head("d", DataType::float64, {2}).fixed64(10, 1).fixed64(10, 2))),
            (std::vector<double>{1, 2}));
  EXPECT_EQ(
      elements<double>(read_initializer(tensor_head("d", DataType::float64, {2}).text(10, raw_bytes<double>({1, 2})))),
      (std::vector<double>{1, 2}));
  EXPECT_EQ(elements<float>(read_initializer(tensor_head("c", DataType::complex64, {1}).fixed32(4, 1).fixed32(4, 2))),
            (std::vector<float>{1, 2}));
}

TEST_F(TensorTest, ReadsIntegers) {
  EXPECT_EQ(ints(tensor_head("i", DataType::int64, {2}).packed(7, {-1, 1LL << 40})), (Ints{-1, 1LL << 40}));
  EXPECT_EQ(ints(tensor_head("i", DataType::int64, {2}).varint(7, -1).varint(7, 5)), (Ints{-1, 5}));
  EXPECT_EQ(ints(tensor_head("i", DataType::int32, {2}).packed(5, {-1, 2147483647})), (Ints{-1, 2147483647}));
  EXPECT_EQ(ints(tensor_head("i", DataType::int16, {2}).packed(5, {-32768, 32767})), (Ints{-32768, 32767}));
  EXPECT_EQ(ints(tensor_head("i", DataType::int8, {3}).varint(5, -128).varint(5, 127).packed(5, {0})),
            (Ints{-128, 127, 0}));
  EXPECT_EQ(ints(tensor_head("i", DataType::uint8, {2}).packed(5, {0, 255})), (Ints{0, 255}));
  EXPECT_EQ(ints(tensor_head("i", DataType::uint16, {1}).packed(5, {65535})), (Ints{65535}));
  EXPECT_EQ(ints(tensor_head("i", DataType::uint32, {1}).packed(11, {4294967295})), (Ints{4294967295}));
  EXPECT_EQ(ints(tensor_head("b", DataType::boolean, {2}).packed(5, {1, 0})), (Ints{1, 0}));
  EXPECT_EQ(ints(tensor_head("dims", DataType::int8, {}).packed(1, {1, 2}).packed(5, {3, 4})), (Ints{3, 4}))
      << "packed dims";
  EXPECT_EQ(ints(Msg().packed(5, {-1, 1}).varint(1, 2).varint(2, 3)), (Ints{-1, 1}))
      << "the type stands behind the data";
}

TEST_F(TensorTest, ReadsHalvesAndPackedNibbles) {
  EXPECT_EQ(to_doubles(
                read_initializer(tensor_head("h", DataType::float16, {4}).packed(5, {0x3c00, 0xc000, 0x0001, 0x7c00}))),
            (std::vector<double>{1, -2, 5.9604644775390625e-8, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(elements<std::uint8_t>(read_initializer(tensor_head("q", DataType::int4, {3}).packed(5, {0x21, 0x0f}))),
            (std::vector<std::uint8_t>{0x21, 0x0f}));
  EXPECT_EQ(elements<std::uint8_t>(read_initializer(tensor_head("q", DataType::int4, {3}).packed(5, {-1, 0x0f}))),
            (std::vector<std::uint8_t>{0xff, 0x0f}));
  EXPECT_EQ(read_initializer(tensor_head("q", DataType::uint4, {3}).text(9, "ab")).data.size(), 2U);
  EXPECT_EQ(read_initializer(tensor_head("q", DataType::uint2, {5}).text(9, "ab")).data.size(), 2U);
}

TEST_F(TensorTest, NibblesBecomeIntegers) {
  const auto packed = [&](DataType type, std::int64_t count) {
    return ints(tensor_head("q", type, {count}).packed(5, {0x21, 0x8f, 0x0f}));
  };
  EXPECT_EQ(packed(DataType::int4, 5), (Ints{1, 2, -1, -8, -1}));
  EXPECT_EQ(packed(DataType::int4, 6), (Ints{1, 2, -1, -8, -1, 0}));
  EXPECT_EQ(packed(DataType::uint4, 5), (Ints{1, 2, 15, 8, 15}));
  EXPECT_EQ(ints(tensor_head("q", DataType::int4, {0})), Ints{});
  EXPECT_EQ(ints(tensor_head("q", DataType::int4, {}).packed(5, {0x0d})), Ints{-3});
}

TEST_F(TensorTest, NibblesArePackedFromTheLowEnd) {
  EXPECT_EQ(packed_nibbles<int>(std::vector<int>{}).size(), 0U);
  std::vector<int> values;
  for (int count = 1; count <= 33; ++count) {
    values.push_back(count % 16 - 8);
    const auto bytes = packed_nibbles<int>(values);
    ASSERT_EQ(bytes.size(), (values.size() + 1) / 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(nibble_at(bytes, i, true), values[i]);
      EXPECT_EQ(nibble_at(bytes, i, false), (values[i] + 16) % 16);
    }
    if (count % 2 == 1) {
      EXPECT_EQ(static_cast<int>(bytes.back()) >> 4, 0);
    }
  }
}

TEST_F(TensorTest, ReadsEmptyAndScalarShapes) {
  EXPECT_EQ(read_initializer(tensor_head("e", DataType::float32, {0, 5})).data.size(), 0U);
  EXPECT_EQ(read_initializer(tensor_head("e", DataType::float32, {0}).text(9, "")).count(), 0);
  EXPECT_EQ(read_initializer(tensor_head("s", DataType::float32, {}).fixed32(4, 2)).count(), 1);
  // An extent of 0 makes the product 0 wherever it stands.
  EXPECT_EQ(read_initializer(tensor_head("e", DataType::float32, {0, 1LL << 62, 1LL << 62})).count(), 0);
}

TEST_F(TensorTest, RefusesSizesThatDisagree) {
  const std::string eight(8, 'x');
  expect_bad_initializer(tensor_head("w", DataType::float32, {3}).text(9, eight), "data are 8 bytes");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).text(9, eight), "data are 8 bytes");
  expect_bad_initializer(tensor_head("w", DataType::float32, {2}), "data are 0 bytes");
  expect_bad_initializer(tensor_head("w", DataType::float32, {2}).text(4, "abcde"), "data are 5 bytes");
  expect_bad_initializer(tensor_head("w", DataType::int64, {2}).packed(7, {1}), "data are 8 bytes");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).text(4, raw_bytes<float>({1, 2})).fixed32(4, 3),
                         "12 bytes");
  expect_bad_initializer(tensor_head("w", DataType::float32, {2, -1}).text(9, eight), "shape [2,-1] is not valid");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1LL << 33, 1LL << 33}), "is not valid");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1LL << 62}), "is too large");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1LL << 50}).text(9, eight), "data are 8 bytes");
}

TEST_F(TensorTest, RefusesDataOfTheWrongKind) {
  const std::string four(4, 'x');
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).text(9, four).fixed32(4, 1),
                         "both raw_data and typed data");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).text(9, four).text(4, four),
                         "both raw_data and typed data");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).packed(5, {1}), "not for type float32");
  expect_bad_initializer(tensor_head("w", DataType::int8, {4}).fixed32(4, 1), "not for type int8");
  expect_bad_initializer(tensor_head("w", DataType::int8, {4}).text(4, four), "not for type int8");
  expect_bad_initializer(tensor_head("w", DataType::float16, {1}).fixed32(4, 1), "not for type float16");
  expect_bad_initializer(tensor_head("w", DataType::int32, {1}).packed(7, {1}), "not for type int32");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).fixed64(10, 1), "not for type float32");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).text(6, "a").text(9, four),
                         "string data in a float32");
  expect_bad_initializer(tensor_head("w", DataType::float32, {1}).sub(3, Msg().varint(1, 0)).text(9, four),
                         "segmented");
}

TEST_F(TensorTest, RefusesValuesThatTheTypeCannotHold) {
  const auto refuses = [&](DataType type, std::int64_t value) {
    expect_bad_initializer(tensor_head("w", type, {1}).packed(5, {value}), "does not fit");
    expect_bad_initializer(tensor_head("w", type, {1}).varint(5, value), "does not fit");
  };
  refuses(DataType::int8, 300);
  refuses(DataType::int8, 128);
  refuses(DataType::int8, -129);
  refuses(DataType::uint8, 256);
  refuses(DataType::uint8, -1);
  refuses(DataType::int16, 32768);
  refuses(DataType::uint16, -1);
  refuses(DataType::uint16, 65536);
  refuses(DataType::float16, 65536);
  refuses(DataType::int4, 256);
  expect_bad_initializer(tensor_head("w", DataType::uint32, {1}).packed(11, {1LL << 32}), "does not fit");
}

TEST_F(TensorTest, CarriesUnknownTypesWithoutData) {
  for (const auto type :
       {DataType::undefined, DataType::string, static_cast<DataType>(27), static_cast<DataType>(-1)}) {
    const Tensor t = read_initializer(tensor_head("w", type, {4}).text(9, "abc"));
    EXPECT_EQ(t.data.size(), 0U);
    EXPECT_EQ(t.type, type);
    EXPECT_FALSE(t.raw.empty());
    expect_error([&] { to_int64s(t); }, "expected to hold integers");
    expect_error([&] { to_doubles(t); }, "expected to hold floating-point");
  }
}

TEST_F(TensorTest, ThrowsOnlyErrorsWhenReadOnItsOwn) {
  const std::string whole = tensor_head("w", DataType::int64, {2}).packed(7, {1LL << 40, 2}).bytes;
  ExternalFiles nowhere{fs::path()};
  for (std::size_t n = 0; n < whole.size(); ++n) {
    try {
      read_tensor(Wire::own(whole.substr(0, n)), nullptr, nowhere, "here");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::bad_input);
    }
  }
  expect_error([&] { read_tensor(Wire::own("\x08"), nullptr, nowhere, "here"); }, "here");
  const Msg external = tensor_head("w", DataType::float32, {1}).sub(13, entry("location", "x")).varint(14, 1);
  expect_error([&] { read_tensor(Wire::own(external.bytes), nullptr, nowhere, "here"); }, "external data file");
  const Msg here = tensor_head("w", DataType::float32, {1}).sub(13, entry("location", ".")).varint(14, 1);
  expect_error([&] { read_tensor(Wire::own(here.bytes), nullptr, nowhere, "here"); }, "here");
}

TEST_F(TensorTest, MessagesStayOnOneLine) {
  expect_bad_initializer(tensor_head("a\nb\x1b[31m", DataType::float32, {1}), "tensor 'a\\x0ab\\x1b[31m'");
}

TEST_F(TensorTest, DataPassInPieces) {
  const std::vector<float> values(300000, 1.5F);
  const Tensor t = read_initializer(tensor_head("w", DataType::float32, {300000}).text(9, raw_bytes(values)));
  ASSERT_NE(t.data.file(), nullptr) << "raw data stay in the mapped file";
  std::size_t seen = 0;
  for_each_float(t.data, [&](std::span<const float> piece, std::int64_t first) {
    EXPECT_EQ(first, static_cast<std::int64_t>(seen));
    seen += piece.size();
    for (const float v : piece) ASSERT_EQ(v, 1.5F);
  });
  EXPECT_EQ(seen, values.size());
  EXPECT_EQ(elements<float>(t), values) << "pages that were given back are read again";
  expect_error([] { TensorData::produced(4, [](const Sink&) {}).bytes(); }, "produced", ErrorKind::internal);
}

TEST(Half, EveryNumberComesBackAsItWas) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool nan16 = (bits & 0x7fffU) > 0x7c00U, nan_brain = (bits & 0x7fffU) > 0x7f80U;
    EXPECT_EQ(std::isnan(from_float16(half)), nan16);
    EXPECT_EQ(std::isnan(from_bfloat16(half)), nan_brain);
    if (!nan16) {
      EXPECT_EQ(to_float16(from_float16(half)), half);
    }
    if (!nan_brain) {
      EXPECT_EQ(to_bfloat16(from_bfloat16(half)), half);
    }
  }
  EXPECT_TRUE(std::isnan(from_float16(to_float16(NAN))));
  EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(NAN))));
}

TEST(Half, BetweenTwoNumbersTheNearerAndOfEquallyNearTheEvenOne) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = from_float16(half), high = from_float16(static_cast<std::uint16_t>(half + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_float16(std::nextafter(middle, 0.0F)), half);
    EXPECT_EQ(to_float16(middle), half + half % 2);
    EXPECT_EQ(to_float16(std::nextafter(middle, 1e9F)), half + 1);
    EXPECT_EQ(to_float16(-middle), 0x8000 + half + half % 2);
  }
}

TEST(Half, RangesEnd) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_float16(to_float16(65519.996F)), 65504);
  EXPECT_EQ(from_float16(to_float16(65520)), inf);
  EXPECT_EQ(from_float16(to_float16(-1e30F)), -inf);
  EXPECT_EQ(from_float16(to_float16(1e-12F)), 0);
  EXPECT_EQ(from_float16(to_float16(1e-7F)), std::ldexp(2.0F, -24));
  EXPECT_EQ(from_bfloat16(to_bfloat16(7e4F)), 70144);
  EXPECT_EQ(from_bfloat16(to_bfloat16(std::numeric_limits<float>::max())), inf);
  EXPECT_EQ(from_bfloat16(to_bfloat16(inf)), inf);
}

// Which external data are accepted, and that nothing outside of the model's own directory is ever read.

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

// Tensors with external data that are no initializers of the main graph: read by the rules, then part of the model.

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

// Files that are not sound models: always detent::Error, whatever is wrong.

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
