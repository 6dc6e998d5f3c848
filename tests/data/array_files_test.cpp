#include <protozero/pbf_writer.hpp>

#include <sys/stat.h>
#include <limits>
#include <string>
#include <vector>

#include "base/text.h"
#include "data/load.h"
#include "data/numpy.h"
#include "support.h"

namespace detent::data::test {
namespace {

NpyHeader parsed_header(const std::string& file) {
  return parse_npy_header(as_byte_span(file), file.size(), "'f.npy'");
}

Array read_array(const std::string& file) {
  const NpyHeader header = parsed_header(file);
  return npy_array(header, as_byte_span(file).subspan(header.data_offset), nullptr, "'f.npy'");
}

void expect_npy_refused(const std::string& file, const std::vector<std::string>& parts) {
  expect_error([&] { parsed_header(file); }, parts);
}

TEST(Npy, EveryNumericTypeIsRead) {
  const std::vector<std::pair<std::string, DataType>> types{
      {"|b1", DataType::boolean}, {"|i1", DataType::int8},    {"<i2", DataType::int16},   {"<i4", DataType::int32},
      {"<i8", DataType::int64},   {"|u1", DataType::uint8},   {"<u2", DataType::uint16},  {"<u4", DataType::uint32},
      {"<u8", DataType::uint64},  {"<f2", DataType::float16}, {"<f4", DataType::float32}, {"<f8", DataType::float64}};
  for (const auto& [descr, type] : types) {
    const auto size = static_cast<std::size_t>(onnx::bits_of(type) / 8);
    const NpyHeader header = parsed_header(npy(descr, {2, 3}, std::string(6 * size, '\0')));
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
  expect_npy_refused(file, {"version 4.0"});
}

TEST(Npy, ScalarAndEmptyShapes) {
  EXPECT_EQ(parsed_header(npy("<f4", {}, raw<float>({7}))).shape, Dims{});
  EXPECT_EQ(parsed_header(npy("<f4", {0, 5}, "")).data_bytes, 0U);
  EXPECT_EQ(parsed_header(npy("<f4", {3, 0, 2}, "", true)).data_bytes, 0U);
  EXPECT_TRUE(read_array(npy("<f4", {3, 0, 2}, "", true)).bytes.empty());
}

TEST(Npy, HeaderSpellingsThatPythonAccepts) {
  const std::string data = raw<float>({1, 2, 3, 4, 5, 6});
  for (const char* text : {R"({"shape": (2,3), "descr": "<f4", "fortran_order": False})",
                           "{'shape':(2L, 3L),'descr':'<f4','fortran_order':False,}",
                           " { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } "}) {
    EXPECT_EQ(parsed_header(npy_with_header(text, data)).shape, (Dims{2, 3})) << text;
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
    expect_npy_refused(npy_with_header(text, raw<float>({1})), {"'f.npy'", "malformed .npy header"});
  }
}

TEST(Npy, UnsupportedTypesAreNamed) {
  expect_npy_refused(npy(">f4", {1}, "1234"), {"big-endian", "astype('<f4')"});
  expect_npy_refused(npy("|O", {1}, "12345678"), {"pickle", "'f.npy'"});
  expect_npy_refused(npy("<U3", {1}, std::string(12, 'x')), {"string", "<U3"});
  expect_npy_refused(npy("|S3", {1}, "abc"), {"string"});
  expect_npy_refused(npy("<c8", {1}, "12345678"), {"<c8", "float32"});
  expect_npy_refused(npy("|V2", {1}, "12"), {"bfloat16"});
  expect_npy_refused(npy("|f4", {1}, "1234"), {"|f4"});
  expect_npy_refused(npy("", {1}, "1234"), {"not supported"});
  expect_npy_refused(npy("<M8[ns]", {1}, "12345678"), {"<M8[ns]"});
  expect_npy_refused(npy_with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
                     {"structured"});
}

TEST(Npy, SizesAreHeldAgainstEachOther) {
  const std::string good = npy("<f4", {2}, raw<float>({1, 2}));
  for (std::size_t size = 0; size < good.size(); ++size) {
    expect_npy_refused(good.substr(0, size), {"'f.npy'"});
  }
  expect_npy_refused("", {"empty"});
  expect_npy_refused("hello, world", {"not a .npy file"});
  expect_npy_refused(good.substr(0, good.size() - 1), {"truncated", "float32 [2]", "8 bytes", "found 7"});
  expect_npy_refused(good + "x", {"1 trailing bytes"});
}

TEST(Npy, OverflowingShapesAreRefused) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  expect_npy_refused(npy("<f4", {kMax, kMax}, "1234"), {"impossible shape"});
  expect_npy_refused(npy("<f8", {kMax / 4}, "1234"), {"impossible shape"});
  expect_npy_refused(npy("<f8", {std::int64_t{1} << 50}, "1234"), {"truncated"});
  expect_npy_refused(npy("|u1", Dims(65, 1), "1"), {"64 dimensions"});
  std::string long_header = npy_with_header(npy_header("<f4", {1}), "1234", 2);
  long_header.replace(8, 4, "\xff\xff\xff\xff");
  expect_npy_refused(long_header, {"cut short"});
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

const std::vector<InputSpec>& two_inputs() {
  static const std::vector<InputSpec> inputs{input("x", {-1, 3}), input("ids", {-1}, DataType::int64)};
  return inputs;
}

Members good_members() {
  return {{"ids.npy", npy("<i8", {2}, raw<std::int64_t>({5, 6}))}, {"x.npy", counting({2, 3})}};
}

class Npz : public DataTest {
 protected:
  void zip(const std::string& name, const Members& members, int method = ZIP_CM_STORE) const {
    write_zip(at(name), members, method);
  }
  /// Overwrites `bytes` at the n-th place where `marker` stands in the file.
  void patch(const std::string& name, const std::string& marker, std::size_t offset, const std::string& bytes) const {
    std::string file = read(at(name));
    const std::size_t found = file.rfind(marker);
    ASSERT_NE(found, std::string::npos);
    file.replace(found + offset, bytes.size(), bytes);
    put(name, file);
  }
};

constexpr const char* kCentral = "PK\x01\x02";

TEST_F(Npz, StoredAndDeflatedMembersAreRead) {
  zip("a.npz", good_members());
  zip("b.npz", good_members(), ZIP_CM_DEFLATE);
  const std::vector<Sample> samples = load(two_inputs());
  ASSERT_EQ(origins(samples), (std::vector<std::string>{"a.npz", "b.npz"}));
  for (const Sample& sample : samples) {
    EXPECT_EQ(values(sample.inputs[0]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(sample.inputs[0].shape, (Dims{2, 3}));
    EXPECT_EQ(values<std::int64_t>(sample.inputs[1]), (std::vector<std::int64_t>{5, 6}));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(sample.inputs[1].bytes.data()) % 8, 0U);
  }
}

TEST_F(Npz, ColumnOrderIsTurned) {
  zip("a.npz", {{"x.npy", npy("<f4", {2, 2}, raw<float>({1, 2, 3, 4}), true)}}, ZIP_CM_DEFLATE);
  EXPECT_EQ(values(load({input("x", {2, 2})})[0].inputs[0]), (std::vector<float>{1, 3, 2, 4}));
}

TEST_F(Npz, KeysMustBeTheInputs) {
  zip("a.npz", {{"x.npy", counting({2, 3})}});
  expect_bad(two_inputs(), {"a.npz'", "key 'ids' is missing", "found: 'x'", "'x' float32 [?, 3], 'ids' int64 [?]"});
  Members more = good_members();
  more.emplace_back("odd\n.npy", counting({1}));
  zip("a.npz", more);
  expect_bad(two_inputs(), {"a.npz'", "key 'odd\\x0a' is not an input", "'ids' int64 [?]"});
  zip("a.npz", {{"x.npy", counting({1, 3})}, {"readme.txt", "hi"}});
  expect_bad({input("x", {-1, 3})}, {"readme.txt", "not a .npy array"});
}

TEST_F(Npz, NamesWithSlashesAreKeys) {
  zip("a.npz", {{"model/x:0.npy", counting({1, 3})}});
  EXPECT_EQ(load({input("model/x:0", {-1, 3})}).size(), 1U);
}

TEST_F(Npz, LoneArr0FeedsASingleInput) {
  zip("a.npz", {{"arr_0.npy", counting({1, 3})}});
  EXPECT_EQ(load({input("x", {-1, 3})}).size(), 1U);
  expect_bad(two_inputs(), {"key 'x' is missing"});
  zip("a.npz", {{"arr_0.npy", counting({1, 3})}, {"arr_1.npy", counting({1, 3})}});
  expect_bad({input("x", {-1, 3})}, {"key 'x' is missing", "'arr_0', 'arr_1'"});
}

TEST_F(Npz, MembersAreCheckedAsNpyFiles) {
  zip("a.npz", {{"x.npy", counting({2, 3}) + "!"}});
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "trailing"});
  zip("a.npz", {{"x.npy", counting({2, 3}).substr(0, 140)}}, ZIP_CM_DEFLATE);
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "truncated"});
  zip("a.npz", {{"x.npy", ""}});
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "empty"});
  zip("a.npz", {{"x.npy", "\x93NUMPY"}});
  expect_bad({input("x", {-1, 3})}, {"cut short"});
}

TEST_F(Npz, MismatchIsFoundBeforeTheDataIsRead) {
  std::string damaged = counting({2, 4});
  zip("a.npz", {{"x.npy", damaged}});
  patch("a.npz", kCentral, 16, "\xde\xad\xbe\xef");  // a wrong checksum would be reported if the data were read
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "expects float32 [?, 3], found float32 [2, 4]"});
}

TEST_F(Npz, ChecksumIsCompared) {
  zip("a.npz", {{"x.npy", counting({2, 3})}});
  patch("a.npz", kCentral, 16, "\xde\xad\xbe\xef");
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "damaged archive"});
}

TEST_F(Npz, DeclaredSizesMustBePossible) {
  zip("a.npz", {{"x.npy", counting({1000, 3})}}, ZIP_CM_DEFLATE);
  patch("a.npz", kCentral, 24, little_endian(0x7fffffff, 4));  // the uncompressed size: a bomb
  expect_bad({input("x", {-1, 3})}, {"a.npz' key 'x'", "damaged archive", "cannot come out of"});
  zip("a.npz", {{"x.npy", counting({1000, 3})}});
  patch("a.npz", kCentral, 24, little_endian(20000, 4));
  expect_bad({input("x", {-1, 3})}, {"damaged archive"});
}

TEST_F(Npz, DeclaredSizeMustAgreeWithTheHeader) {
  const std::string lying = npy_with_header(npy_header("<f4", {1000000000, 3}), raw<float>({1, 2, 3}));
  zip("a.npz", {{"x.npy", lying}}, ZIP_CM_DEFLATE);
  expect_bad({input("x", {-1, 3})}, {"truncated", "12000000000 bytes"});
}

TEST_F(Npz, DamagedArchivesAreRefused) {
  put("a.npz", "this is no archive");
  expect_bad(two_inputs(), {"a.npz'", "not a whole zip archive"});
  put("a.npz", "");
  expect_bad(two_inputs(), {"a.npz'", "empty"});
  zip("a.npz", {{"x.npy", counting({1, 3})}, {"y.npy", counting({1, 3})}});
  patch("a.npz", "y.npy", 0, "x");
  expect_bad({input("x", {-1, 3})}, {"'x' appears twice"});
  zip("a.npz", good_members());
  const std::string whole = read(at("a.npz"));
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    put("a.npz", whole.substr(0, size));
    expect_bad(two_inputs(), {"a.npz'"});
  }
}

TEST_F(Npz, EveryFlippedByteIsHarmless) {
  for (const int method : {ZIP_CM_STORE, ZIP_CM_DEFLATE}) {
    zip("a.npz", good_members(), method);
    const std::string whole = read(at("a.npz"));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
      try {
        const NpzFile npz = NpzFile::from_memory(as_byte_span(damaged), "'a.npz'");
        for (std::size_t k = 0; k < npz.keys().size(); ++k) npz.read(k);
      } catch (const Error&) {
      }
    }
  }
}

TEST_F(Npz, OtherCompressionsAreRefused) {
  zip("a.npz", {{"x.npy", counting({1000, 3})}}, ZIP_CM_DEFLATE);
  patch("a.npz", kCentral, 10, little_endian(12, 2));
  expect_bad({input("x", {-1, 3})}, {"compression method 12", "savez"});
}

TEST_F(Npz, SpecialFilesAreRefused) {
  ASSERT_EQ(::mkfifo(at("a.npz").c_str(), 0600), 0);
  expect_bad(two_inputs(), {"a.npz'", "not a regular file"});
}

struct Tensor {
  std::string bytes;
  protozero::pbf_writer writer{bytes};

  Tensor(DataType type, const Dims& dims, const std::string& name = "") {
    writer.add_packed_int64(1, dims.begin(), dims.end());
    writer.add_int32(2, static_cast<std::int32_t>(type));
    if (!name.empty()) writer.add_string(8, name);
  }
};

std::string raw_tensor(DataType type, const Dims& dims, const std::string& data, const std::string& name = "") {
  Tensor tensor(type, dims, name);
  tensor.writer.add_bytes(9, data);
  return tensor.bytes;
}

std::string floats(const std::vector<float>& v, const std::string& name = "") {
  return raw_tensor(DataType::float32, {1, static_cast<std::int64_t>(v.size())}, raw(v), name);
}

Array pb_array(const std::string& bytes) { return parse_pb(bytes, "'t.pb'").array; }

void expect_pb_refused(const std::string& bytes, const std::vector<std::string>& parts) {
  expect_error([&] { pb_array(bytes); }, parts);
}

TEST(Pb, RawDataIsAligned) {
  for (std::size_t shift = 0; shift < 8; ++shift) {
    const std::string bytes = raw_tensor(DataType::float64, {2}, raw<double>({1, 2}), std::string(shift, 'n'));
    const Array array = pb_array(bytes);
    EXPECT_EQ(values<double>(array), (std::vector<double>{1, 2}));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.bytes.data()) % 8, 0U);
  }
}

TEST(Pb, TypedFieldsPackedAndNot) {
  const std::vector<float> f{1.5F, -2};
  Tensor packed(DataType::float32, {2});
  packed.writer.add_packed_float(4, f.begin(), f.end());
  EXPECT_EQ(values(pb_array(packed.bytes)), f);
  Tensor single(DataType::float32, {2});
  for (const float v : f) single.writer.add_float(4, v);
  EXPECT_EQ(values(pb_array(single.bytes)), f);
}

TEST(Pb, EveryTypedField) {
  const std::vector<std::int32_t> small{0, 1, 100};
  const auto from_int32 = [&](DataType type) {
    Tensor tensor(type, {3});
    tensor.writer.add_packed_int32(5, small.begin(), small.end());
    return pb_array(tensor.bytes);
  };
  EXPECT_EQ(values<std::int8_t>(from_int32(DataType::int8)), (std::vector<std::int8_t>{0, 1, 100}));
  EXPECT_EQ(values<std::uint8_t>(from_int32(DataType::uint8)), (std::vector<std::uint8_t>{0, 1, 100}));
  EXPECT_EQ(values<std::int16_t>(from_int32(DataType::int16)), (std::vector<std::int16_t>{0, 1, 100}));
  EXPECT_EQ(values<std::uint16_t>(from_int32(DataType::float16)), (std::vector<std::uint16_t>{0, 1, 100}));
  EXPECT_EQ(values<std::int32_t>(from_int32(DataType::int32)), small);

  const std::vector<std::int64_t> i{-1, 1LL << 40};
  Tensor longs(DataType::int64, {2});
  longs.writer.add_packed_int64(7, i.begin(), i.end());
  EXPECT_EQ(values<std::int64_t>(pb_array(longs.bytes)), i);
  const std::vector<std::uint64_t> u{7, 4000000000};
  Tensor unsigneds(DataType::uint32, {2});
  unsigneds.writer.add_packed_uint64(11, u.begin(), u.end());
  EXPECT_EQ(values<std::uint32_t>(pb_array(unsigneds.bytes)), (std::vector<std::uint32_t>{7, 4000000000}));
  const std::vector<double> d{0.25};
  Tensor doubles(DataType::float64, {1});
  doubles.writer.add_packed_double(10, d.begin(), d.end());
  EXPECT_EQ(values<double>(pb_array(doubles.bytes)), d);
}

TEST(Pb, BadTensorsAreRefused) {
  expect_pb_refused("", {"'t.pb'", "not a tensor of numbers"});
  expect_pb_refused(raw_tensor(DataType::float32, {3}, "1234"), {"'t.pb'", "4 bytes", "12"});
  expect_pb_refused(raw_tensor(DataType::float32, {-1}, "1234"), {"shape [-1]"});
  expect_pb_refused(raw_tensor(DataType::string, {1}, "1234"), {"not a tensor of numbers"});
  expect_pb_refused(raw_tensor(DataType::int4, {2}, "1"), {"not a tensor of numbers"});
  expect_pb_refused(raw_tensor(DataType::float32, {3}, "1234", "two\nlines"), {"two\\x0alines"});
  expect_pb_refused(Tensor(DataType::float32, {std::int64_t{1} << 40}).bytes, {"'t.pb'"});
  expect_pb_refused("\x0a\xff", {"'t.pb'", "truncated or not an ONNX file: it ends inside a field", "TensorProto"});
  for (const char* bytes : {"\x03x", "\x07x", "\x0c", "\x02x"})
    expect_pb_refused(bytes,
                      {"'t.pb'", "truncated or not an ONNX file: it holds bytes that are no field", "TensorProto"});
  Tensor many(DataType::int8, {1});
  for (int i = 0; i < 2; ++i) many.writer.add_int32(5, 1);
  expect_pb_refused(many.bytes, {"'t.pb'"});
  Tensor both(DataType::float32, {1});
  both.writer.add_float(4, 1);
  both.writer.add_bytes(9, "1234");
  expect_pb_refused(both.bytes, {"both raw_data and typed data"});
  Tensor segmented(DataType::float32, {1});
  segmented.writer.add_string(3, "s");
  expect_pb_refused(segmented.bytes, {"'t.pb'", "segmented"});
}

TEST(Pb, DamageNeverAborts) {
  Tensor tensor(DataType::float32, {2}, "x");
  tensor.writer.add_float(4, 1);
  tensor.writer.add_float(4, 2);
  for (const std::string& whole : {tensor.bytes, floats({1, 2}, "x")}) {
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (int flip = 1; flip < 256; ++flip) {
        std::string damaged = whole;
        damaged[i] = static_cast<char>(damaged[i] ^ flip);
        try {
          pb_array(damaged);
        } catch (const Error&) {
        }
      }
      EXPECT_THROW(pb_array(whole.substr(0, i)), Error);
    }
  }
}

using TestSets = DataTest;

std::string external(const std::string& location) {
  Tensor tensor(DataType::float32, {1, 1});
  std::string bytes;
  protozero::pbf_writer entry(bytes);
  entry.add_string(1, "location");
  entry.add_string(2, location);
  tensor.writer.add_message(13, bytes);
  tensor.writer.add_int32(14, 1);
  return tensor.bytes;
}

TEST_F(TestSets, DataInAnotherFileIsRefused) {
  put("test_data_set_0/data.bin", "1234");
  put("test_data_set_0/input_0.pb", external("data.bin"));
  expect_bad({input("a", {1, 1})}, {"input_0.pb'", "another file"});
  put("test_data_set_0/input_0.pb", external("/etc/passwd"));
  expect_bad({input("a", {1, 1})}, {"input_0.pb'"});
}

TEST_F(TestSets, AlignedRawDataStaysInTheMappedFile) {
  int mapped = 0;
  for (std::size_t shift = 1; shift <= 4; ++shift) {  // of four names of growing length, one aligns the data
    put("t.pb", floats({1, 2}, std::string(shift, 'n')));
    const auto file = MappedFile::open(at("t.pb"), "test file");
    const PbTensor tensor = read_pb(file);
    EXPECT_EQ(values(tensor.array), (std::vector<float>{1, 2}));
    EXPECT_EQ(file->contains(tensor.array.bytes), tensor.array.owner == file);
    mapped += file->contains(tensor.array.bytes) ? 1 : 0;
  }
  EXPECT_EQ(mapped, 1);
}

TEST_F(TestSets, NumberTellsTheInput) {
  for (const char* set : {"test_data_set_10", "test_data_set_2"}) {
    put(fmt::format("{}/input_0.pb", set), floats({1, 2}));
    put(fmt::format("{}/input_1.pb", set), floats({3}, "some other name"));
    put(fmt::format("{}/output_0.pb", set), "ignored");
  }
  put("model.onnx", "ignored");
  const std::vector<InputSpec> inputs{input("a", {1, 2}), input("b", {1, 1})};
  const std::vector<Sample> samples = load(inputs);
  ASSERT_EQ(origins(samples), (std::vector<std::string>{"test_data_set_2", "test_data_set_10"}));
  EXPECT_EQ(values(samples[0].inputs[1]), (std::vector<float>{3}));
  const auto one = open_samples(at("test_data_set_2/"), inputs);
  EXPECT_EQ(one->sample_count(), 1U);
  EXPECT_EQ(one->next()->origin, "test_data_set_2");
}

TEST_F(TestSets, NamesWinWhenAllAreThere) {
  put("test_data_set_0/input_0.pb", floats({1}, "b"));
  put("test_data_set_0/input_1.pb", floats({2}, "a"));
  const std::vector<Sample> samples = load({input("a", {1, 1}), input("b", {1, 1})});
  EXPECT_EQ(values(samples[0].inputs[0]), (std::vector<float>{2}));
  EXPECT_EQ(values(samples[0].inputs[1]), (std::vector<float>{1}));
}

TEST_F(TestSets, NamesThatContradictTheNumberAreRefused) {
  put("test_data_set_0/input_0.pb", floats({1}, "b"));
  put("test_data_set_0/input_1.pb", floats({2}));
  expect_bad({input("a", {1, 1}), input("b", {1, 1})}, {"input_0.pb'", "named 'b'", "input 0 of the model is 'a'"});
}

TEST_F(TestSets, EveryInputMustBeThere) {
  put("test_data_set_0/input_0.pb", floats({1}));
  expect_bad({input("a", {1, 1}), input("b", {1, 1})}, {"input_1.pb' is missing", "'b'"});
  put("test_data_set_0/input_1.pb", floats({1}));
  expect_bad({input("a", {1, 1})}, {"input_1.pb'", "no input 1"});
  put("test_data_set_0/input_01.pb", floats({1}));
  expect_bad({input("a", {1, 1}), input("b", {1, 1})}, {"input 1 appears twice"});
}

TEST_F(TestSets, TypesAndShapesAreChecked) {
  put("test_data_set_0/input_0.pb", floats({1, 2}));
  expect_bad({input("a", {1, 3})}, {"input_0.pb'", "input 'a' expects float32 [1, 3], found float32 [1, 2]"});
  expect_bad({input("a", {1, 2}, DataType::int64)}, {"expects int64 [1, 2]", "astype"});
}

}  // namespace
}  // namespace detent::data::test
