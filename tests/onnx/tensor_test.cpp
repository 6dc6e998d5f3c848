// Every way in which a TensorProto may hold its elements, and every way in which it may lie about them.
#include "onnx/tensor.h"
#include "onnx/packed_numbers.h"
#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

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

}  // namespace
}  // namespace detent::onnx::test
