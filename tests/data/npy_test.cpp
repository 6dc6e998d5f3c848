#include "data/numpy.h"

#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "support.h"

namespace detent::data::test {
namespace {

NpyHeader parse(const std::string& file) { return parse_npy_header(as_byte_span(file), file.size(), "'f.npy'"); }

Array read_array(const std::string& file) {
  const NpyHeader header = parse(file);
  return npy_array(header, as_byte_span(file).subspan(header.data_offset), nullptr, "'f.npy'");
}

void expect_refused(const std::string& file, const std::vector<std::string>& parts) {
  expect_error([&] { parse(file); }, parts);
}

TEST(Npy, EveryNumericTypeIsRead) {
  const std::vector<std::pair<std::string, DataType>> types{
      {"|b1", DataType::boolean}, {"|i1", DataType::int8},    {"<i2", DataType::int16},   {"<i4", DataType::int32},
      {"<i8", DataType::int64},   {"|u1", DataType::uint8},   {"<u2", DataType::uint16},  {"<u4", DataType::uint32},
      {"<u8", DataType::uint64},  {"<f2", DataType::float16}, {"<f4", DataType::float32}, {"<f8", DataType::float64}};
  for (const auto& [descr, type] : types) {
    const auto size = static_cast<std::size_t>(onnx::bits_of(type) / 8);
    const NpyHeader header = parse(npy(descr, {2, 3}, std::string(6 * size, '\0')));
    EXPECT_EQ(header.type, type) << descr;
    EXPECT_EQ(header.shape, (Dims{2, 3}));
    EXPECT_EQ(header.data_bytes, 6 * size);
  }
}

TEST(Npy, EveryVersionIsRead) {
  const std::string data = raw<float>({1, 2});
  for (const int version : {1, 2, 3}) {
    const std::string file = npy_with_header(npy_header("<f4", {2}), data, version);
    EXPECT_EQ(values(read_array(file)), (std::vector<float>{1, 2})) << version;
  }
  std::string file = npy_with_header(npy_header("<f4", {2}), data);
  file[6] = 4;
  expect_refused(file, {"version 4.0"});
}

TEST(Npy, ScalarAndEmptyShapes) {
  EXPECT_EQ(parse(npy("<f4", {}, raw<float>({7}))).shape, Dims{});
  EXPECT_EQ(parse(npy("<f4", {0, 5}, "")).data_bytes, 0U);
  EXPECT_EQ(parse(npy("<f4", {3, 0, 2}, "", true)).data_bytes, 0U);
  EXPECT_TRUE(read_array(npy("<f4", {3, 0, 2}, "", true)).bytes.empty());
}

TEST(Npy, HeaderSpellingsThatPythonAccepts) {
  const std::string data = raw<float>({1, 2, 3, 4, 5, 6});
  for (const char* text : {R"({"shape": (2,3), "descr": "<f4", "fortran_order": False})",
                           "{'shape':(2L, 3L),'descr':'<f4','fortran_order':False,}",
                           " { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } "}) {
    EXPECT_EQ(parse(npy_with_header(text, data)).shape, (Dims{2, 3})) << text;
  }
}

TEST(Npy, MalformedHeadersAreRefused) {
  for (const char* text : {"", "{", "{}", "{'descr': '<f4', 'fortran_order': False}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}",
                           "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
                           "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,,)}",
                           "{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
                           "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                           "{'descr': None, 'fortran_order': False, 'shape': (1,)}",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}"}) {
    expect_refused(npy_with_header(text, raw<float>({1})), {"'f.npy'", "malformed .npy header"});
  }
}

TEST(Npy, UnsupportedTypesAreNamed) {
  expect_refused(npy(">f4", {1}, "1234"), {"big-endian", "astype('<f4')"});
  expect_refused(npy("|O", {1}, "12345678"), {"pickle", "'f.npy'"});
  expect_refused(npy("<U3", {1}, std::string(12, 'x')), {"string", "<U3"});
  expect_refused(npy("|S3", {1}, "abc"), {"string"});
  expect_refused(npy("<c8", {1}, "12345678"), {"<c8", "float32"});
  expect_refused(npy("|V2", {1}, "12"), {"bfloat16"});
  expect_refused(npy("|f4", {1}, "1234"), {"|f4"});
  expect_refused(npy("", {1}, "1234"), {"not supported"});
  expect_refused(npy("<M8[ns]", {1}, "12345678"), {"<M8[ns]"});
  expect_refused(npy_with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
                 {"structured"});
}

TEST(Npy, SizesAreHeldAgainstEachOther) {
  const std::string good = npy("<f4", {2}, raw<float>({1, 2}));
  for (std::size_t size = 0; size < good.size(); ++size) {
    expect_refused(good.substr(0, size), {"'f.npy'"});
  }
  expect_refused("", {"empty"});
  expect_refused("hello, world", {"not a .npy file"});
  expect_refused(good.substr(0, good.size() - 1), {"truncated", "float32 [2]", "8 bytes", "found 7"});
  expect_refused(good + "x", {"1 trailing bytes"});
}

TEST(Npy, OverflowingShapesAreRefused) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  expect_refused(npy("<f4", {kMax, kMax}, "1234"), {"impossible shape"});
  expect_refused(npy("<f8", {kMax / 4}, "1234"), {"impossible shape"});
  expect_refused(npy("<f8", {std::int64_t{1} << 50}, "1234"), {"truncated"});
  expect_refused(npy("|u1", Dims(65, 1), "1"), {"64 dimensions"});
  std::string long_header = npy_with_header(npy_header("<f4", {1}), "1234", 2);
  long_header.replace(8, 4, "\xff\xff\xff\xff");
  expect_refused(long_header, {"cut short"});
}

TEST(Npy, ColumnOrderBecomesRowOrder) {
  // Element (i, j, k) of a 2x3x2 array has the value 100 i + 10 j + k.
  std::vector<std::int16_t> columns;
  std::vector<std::int16_t> rows;
  for (int k = 0; k < 2; ++k) {
    for (int j = 0; j < 3; ++j) {
      for (int i = 0; i < 2; ++i) columns.push_back(static_cast<std::int16_t>(100 * i + 10 * j + k));
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      for (int k = 0; k < 2; ++k) rows.push_back(static_cast<std::int16_t>(100 * i + 10 * j + k));
    }
  }
  EXPECT_EQ(values<std::int16_t>(read_array(npy("<i2", {2, 3, 2}, raw(columns), true))), rows);
}

TEST(Npy, ColumnOrderOfEveryElementSize) {
  EXPECT_EQ(values<std::uint8_t>(read_array(npy("|u1", {2, 2}, raw<std::uint8_t>({1, 2, 3, 4}), true))),
            (std::vector<std::uint8_t>{1, 3, 2, 4}));
  EXPECT_EQ(values<float>(read_array(npy("<f4", {2, 2}, raw<float>({1, 2, 3, 4}), true))),
            (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(values<double>(read_array(npy("<f8", {2, 2}, raw<double>({1, 2, 3, 4}), true))),
            (std::vector<double>{1, 3, 2, 4}));
  EXPECT_EQ(values<float>(read_array(npy("<f4", {3}, raw<float>({1, 2, 3}), true))), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace detent::data::test
