#include "data/numpy.h"

#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "support.h"

namespace detent::data::test {
namespace {

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

}  // namespace
}  // namespace detent::data::test
