// Calibration data as a folder of files in any layout, and as a stream of arrays: what comes out fits the inputs.
#include "data/sample.h"

#include "fuzz/fuzz.h"
#include "onnx/wire.h"

namespace detent::fuzz {
namespace {

using data::InputSpec;
using onnx::DataType;
using Shape = std::vector<std::int64_t>;

// Bytes from here on choose sound, those before them pictures.
constexpr std::uint8_t kPictures = 238, kSound = 240;

std::vector<InputSpec> inputs_of(std::uint8_t choice) {
  if (choice == kPictures) return {{"picture", DataType::float32, Shape{-1, 3, 2, 2}}};
  if (choice == kPictures + 1) return {{"x", DataType::bfloat16, Shape{-1, 2}}};
  switch (choice < kSound ? choice % 5 : 5 + choice % 3) {
    case 0: return {{"x", DataType::float32, Shape{-1, 2}}};
    case 1: return {{"x", DataType::float32, Shape{2, 2}}, {"y", DataType::int64, Shape{2}}};
    case 2: return {{"x", DataType::float32, std::nullopt}};
    case 3: return {{"x", DataType::uint8, Shape{}}, {"y", DataType::float32, Shape{-1, 0}}};
    case 5: return {{"sound", DataType::float32, Shape{-1, -1}}};
    case 6: return {{"sound", DataType::float32, Shape{-1, 2, -1}}};
    case 7: return {{"sound", DataType::float32, Shape{-1}}};
    default:
      return {{"input_ids", DataType::int64, Shape{-1, -1}},
              {"attention_mask", DataType::int64, Shape{-1, -1}},
              {"position_ids", DataType::int64, Shape{-1, -1}},
              {"past_key_values.0.key", DataType::float32, Shape{-1, 1, -1, 2}}};
  }
}

void check(const data::Sample& sample, const std::vector<InputSpec>& inputs) {
  require(sample.inputs.size() == inputs.size(), "a sample has all inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const data::Array& array = sample.inputs[i];
    require(array.type == inputs[i].type, "an array has the input's type");
    const auto count = onnx::element_count(array.shape);
    require(count && onnx::byte_count(array.type, *count) == array.bytes.size(), "an array has the bytes of its shape");
    if (!inputs[i].shape) continue;
    require(array.shape.size() == inputs[i].shape->size(), "an array has the input's rank");
    for (std::size_t d = 0; d < array.shape.size(); ++d) {
      const auto wanted = (*inputs[i].shape)[d];
      require(wanted < 0 || array.shape[d] == wanted, "an array has the input's shape");
    }
  }
}

void drain(data::SampleSource& source, const std::vector<InputSpec>& inputs) {
  for (int i = 0; i < 64; ++i) {
    const auto sample = source.next();
    if (!sample) break;
    check(*sample, inputs);
  }
  source.notes();
}

void read(data::SampleSource& source, const std::vector<InputSpec>& inputs) {
  drain(source, inputs);
  source.rewind();
  source.skip(1);
  drain(source, inputs);
}

constexpr const char* kNames[] = {"a.npz",
                                  "b.npz",
                                  "a.npy",
                                  "10.npy",
                                  "x/a.npy",
                                  "x/b.npy",
                                  "y/a.npy",
                                  "test_data_set_0/input_0.pb",
                                  "test_data_set_0/input_1.pb",
                                  "test_data_set_1/input_0.pb",
                                  "input_ids/a.npy",
                                  "attention_mask/a.npy",
                                  "read.me"};
constexpr const char* kSounds[] = {"a.wav", "b.wav", "x/c.wav"};

/// The inputs, options and then files: which name, and the contents.
void run_files(Bytes input) {
  Parts parts(input);
  const auto inputs = inputs_of(parts.byte());
  const data::SourceOptions options{
      .max_samples = parts.byte() % 8U, .batch_size = parts.byte() % 8, .file_memory = 1 << 20};
  const auto root = fresh_folder("samples");
  std::filesystem::path last;
  while (!parts.empty()) {
    const std::uint8_t choice = parts.byte();
    const auto* name = choice < kSound ? kNames[choice % std::size(kNames)] : kSounds[choice % std::size(kSounds)];
    last = put(root.filename() / name, parts.piece());
  }
  for (const char* place : {"", "test_data_set_0", "none"}) {
    const auto path = *place == '\0' ? root : root / place;
    try_to([&] { read(*data::open_samples(path, inputs, options), inputs); });
  }
  if (!last.empty()) try_to([&] { read(*data::open_samples(last, inputs, options), inputs); });
}

/// Samples of arrays: name, type, shape, bytes.
class Stream final : public SampleStream {
 public:
  explicit Stream(Bytes input) : input_(input), parts_(input) {}
  std::optional<std::vector<NamedArray>> next() override {
    if (parts_.empty()) return std::nullopt;
    std::vector<NamedArray> arrays(parts_.byte() % 5U);
    for (NamedArray& array : arrays) {
      array.name = parts_.text();
      array.type = static_cast<ElementType>(parts_.byte() % 32);
      array.shape.resize(parts_.byte() % 6U);
      for (auto& dim : array.shape) dim = parts_.byte() == 255 ? parts_.number<std::int64_t>() : parts_.byte();
      array.bytes = parts_.piece();
    }
    return arrays;
  }
  void rewind() override { parts_ = Parts(input_); }

 private:
  Bytes input_;
  Parts parts_;
};

void run_stream(Bytes input) {
  Parts parts(input);
  const auto inputs = inputs_of(parts.byte());
  const data::SourceOptions options{.max_samples = parts.byte() % 8U, .batch_size = parts.byte() % 8};
  Stream stream(parts.rest());
  try_to([&] { read(*data::open_samples(stream, inputs, options), inputs); });
}

const Registered samples{{"samples", run_files, {}, 0, 15}};
const Registered stream{{"stream", run_stream, {}, 0, 4}};

}  // namespace
}  // namespace detent::fuzz
