// TensorProtos, with data inline or in a file: sizes agree with shapes, files are those inside the model's folder.
#include <sys/stat.h>

#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/tensor.h"
#include "onnx/write.h"

namespace detent::fuzz {
namespace {

namespace fs = std::filesystem;

void check_file(const MappedFile& file) {
  const auto [end, _] = std::mismatch(external_folder().begin(), external_folder().end(),  //
                                      fs::canonical(file.path()).begin());
  require(end == external_folder().end(), "external data lie inside the model's folder");
  struct stat info {};
  require(::fstat(file.descriptor(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1,
          "external data are a regular file with one name");
}

void check(const onnx::Tensor& tensor) {
  if (tensor.type == onnx::DataType::undefined || tensor.type == onnx::DataType::string) return;
  if (const auto bytes = onnx::byte_count(tensor.type, tensor.count()))
    require(tensor.data.size() == *bytes || tensor.data.size() == 0, "a tensor has the bytes of its shape");
  if (tensor.data.file()) check_file(*tensor.data.file());
  if (tensor.data.size() > 1 << 16) return;
  try_to([&] { onnx::to_int64s(tensor); });
  try_to([&] { onnx::to_doubles(tensor); });
  if (tensor.type == onnx::DataType::float32 && tensor.data.size() > 0) {
    std::size_t seen = 0;
    onnx::for_each_float(tensor.data, [&](auto values, auto first) {
      require(static_cast<std::size_t>(first) == seen, "pieces come in order");
      seen += values.size();
    });
    require(4 * seen == tensor.data.size(), "all elements are passed on");
  }
}

void run(Bytes input) {
  try_to([&] {
    onnx::ExternalFiles files(external_folder() / "model.onnx");
    const onnx::Tensor tensor = onnx::read_tensor(onnx::Wire::own(std::string(as_text(input))), nullptr, files, "'x'");
    check(tensor);
    onnx::ExternalFiles none(folder() / "nothing" / "model.onnx");
    if (tensor.is_external && tensor.data.size() == 0) return;
    const std::string inlined = onnx::encode_tensor(tensor);
    onnx::Tensor again;
    require(try_to([&] { again = onnx::read_tensor(onnx::Wire::own(inlined), nullptr, none, "'y'"); }),
            "a tensor that was written can be read");
    require(std::ranges::equal(again.data.bytes(), tensor.data.bytes()), "a tensor reads back as it was written");
  });
}

const Registered tensor{{"tensor", run, {&kTensor}}};

}  // namespace
}  // namespace detent::fuzz
