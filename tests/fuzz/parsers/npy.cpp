// .npy files, and the input_N.pb files of ONNX test data.
#include "data/load.h"
#include "data/numpy.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/wire.h"

namespace detent::fuzz {
namespace {

void check(const data::Array& array) {
  const auto count = onnx::element_count(array.shape);
  require(count && onnx::byte_count(array.type, *count) == array.bytes.size(), "an array has the bytes of its shape");
  touch(array.bytes);
}

void run_npy(Bytes input) {
  const std::string where = "'a.npy'";
  try_to([&] {
    const auto end = data::npy_header_end(input.first(std::min(data::kNpyPrefix, input.size())), input.size(), where);
    require(end <= input.size(), "the header ends in the file");
    data::parse_npy_header(input.first(end), input.size(), where);
  });
  try_to([&] {
    const data::NpyHeader header = data::parse_npy_header(input, input.size(), where);
    check(data::npy_array(header, input.subspan(header.data_offset), nullptr, where));
  });
}

void run_pb(Bytes input) {
  try_to([&] { check(data::parse_pb(as_text(input), "'input_0.pb'").array); });
  try_to([&] { check(data::read_pb(MappedFile::open(MemoryFile(input).path(), "sample")).array); });
}

const Registered npy{{"npy", run_npy}};
const Registered pb{{"pb", run_pb, {&kTensor}, 0, 4}};

}  // namespace
}  // namespace detent::fuzz
