#include "data/load.h"

#include <protozero/pbf_writer.hpp>
#include <string>
#include <vector>

#include "support.h"

namespace detent::data::test {
namespace {

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

Array parse(const std::string& bytes) { return parse_pb(bytes, "'t.pb'").array; }

void expect_refused(const std::string& bytes, const std::vector<std::string>& parts) {
  expect_error([&] { parse(bytes); }, parts);
}

TEST(Pb, RawDataIsAligned) {
  for (std::size_t shift = 0; shift < 8; ++shift) {
    const std::string bytes = raw_tensor(DataType::float64, {2}, raw<double>({1, 2}), std::string(shift, 'n'));
    const Array array = parse(bytes);
    EXPECT_EQ(values<double>(array), (std::vector<double>{1, 2}));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.bytes.data()) % 8, 0U);
  }
}

TEST(Pb, TypedFieldsPackedAndNot) {
  const std::vector<float> f{1.5F, -2};
  Tensor packed(DataType::float32, {2});
  packed.writer.add_packed_float(4, f.begin(), f.end());
  EXPECT_EQ(values(parse(packed.bytes)), f);
  Tensor single(DataType::float32, {2});
  for (const float v : f) single.writer.add_float(4, v);
  EXPECT_EQ(values(parse(single.bytes)), f);
}

TEST(Pb, EveryTypedField) {
  const std::vector<std::int32_t> small{0, 1, 100};
  const auto from_int32 = [&](DataType type) {
    Tensor tensor(type, {3});
    tensor.writer.add_packed_int32(5, small.begin(), small.end());
    return parse(tensor.bytes);
  };
  EXPECT_EQ(values<std::int8_t>(from_int32(DataType::int8)), (std::vector<std::int8_t>{0, 1, 100}));
  EXPECT_EQ(values<std::uint8_t>(from_int32(DataType::uint8)), (std::vector<std::uint8_t>{0, 1, 100}));
  EXPECT_EQ(values<std::int16_t>(from_int32(DataType::int16)), (std::vector<std::int16_t>{0, 1, 100}));
  EXPECT_EQ(values<std::uint16_t>(from_int32(DataType::float16)), (std::vector<std::uint16_t>{0, 1, 100}));
  EXPECT_EQ(values<std::int32_t>(from_int32(DataType::int32)), small);

  const std::vector<std::int64_t> i{-1, 1LL << 40};
  Tensor longs(DataType::int64, {2});
  longs.writer.add_packed_int64(7, i.begin(), i.end());
  EXPECT_EQ(values<std::int64_t>(parse(longs.bytes)), i);
  const std::vector<std::uint64_t> u{7, 4000000000};
  Tensor unsigneds(DataType::uint32, {2});
  unsigneds.writer.add_packed_uint64(11, u.begin(), u.end());
  EXPECT_EQ(values<std::uint32_t>(parse(unsigneds.bytes)), (std::vector<std::uint32_t>{7, 4000000000}));
  const std::vector<double> d{0.25};
  Tensor doubles(DataType::float64, {1});
  doubles.writer.add_packed_double(10, d.begin(), d.end());
  EXPECT_EQ(values<double>(parse(doubles.bytes)), d);
}

TEST(Pb, BadTensorsAreRefused) {
  expect_refused("", {"'t.pb'", "not a tensor of numbers"});
  expect_refused(raw_tensor(DataType::float32, {3}, "1234"), {"'t.pb'", "4 bytes", "12"});
  expect_refused(raw_tensor(DataType::float32, {-1}, "1234"), {"shape [-1]"});
  expect_refused(raw_tensor(DataType::string, {1}, "1234"), {"not a tensor of numbers"});
  expect_refused(raw_tensor(DataType::int4, {2}, "1"), {"not a tensor of numbers"});
  expect_refused(raw_tensor(DataType::float32, {3}, "1234", "two\nlines"), {"two\\x0alines"});
  expect_refused(Tensor(DataType::float32, {std::int64_t{1} << 40}).bytes, {"'t.pb'"});
  expect_refused("\x0a\xff", {"'t.pb'", "truncated or not an ONNX file: it ends inside a field", "TensorProto"});
  for (const char* bytes : {"\x03x", "\x07x", "\x0c", "\x02x"})
    expect_refused(bytes, {"'t.pb'", "truncated or not an ONNX file: it holds bytes that are no field", "TensorProto"});
  Tensor many(DataType::int8, {1});
  for (int i = 0; i < 2; ++i) many.writer.add_int32(5, 1);
  expect_refused(many.bytes, {"'t.pb'"});
  Tensor both(DataType::float32, {1});
  both.writer.add_float(4, 1);
  both.writer.add_bytes(9, "1234");
  expect_refused(both.bytes, {"both raw_data and typed data"});
  Tensor segmented(DataType::float32, {1});
  segmented.writer.add_string(3, "s");
  expect_refused(segmented.bytes, {"'t.pb'", "segmented"});
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
          parse(damaged);
        } catch (const Error&) {
        }
      }
      EXPECT_THROW(parse(whole.substr(0, i)), Error);
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
