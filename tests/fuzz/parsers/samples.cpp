#include <zip.h>
#include <algorithm>
#include <vector>

#include "data/load.h"
#include "data/numpy.h"
#include "data/pictures.h"
#include "data/sample.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/wire.h"

namespace detent::fuzz {
namespace {

// Calibration data as a folder of files in any layout, and as a stream of arrays: what comes out fits the inputs.

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

const Registered samples_target{{"samples", run_files, {}, 0, 15}};
const Registered stream_target{{"stream", run_stream, {}, 0, 4}};

// .npy files, and the input_N.pb files of ONNX test data.

void check_array(const data::Array& array) {
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
    check_array(data::npy_array(header, input.subspan(header.data_offset), nullptr, where));
  });
}

void run_pb(Bytes input) {
  try_to([&] { check_array(data::parse_pb(as_text(input), "'input_0.pb'").array); });
  try_to([&] { check_array(data::read_pb(MappedFile::open(MemoryFile(input).path(), "sample")).array); });
}

const Registered npy_target{{"npy", run_npy}};
const Registered pb_target{{"pb", run_pb, {&kTensor}, 0, 4}};

// .npz files: as they are, and, since no mutation finds a checksum, as archives that are made of the input.

void read_all(Bytes archive) {
  try_to([&] {
    const auto npz = data::NpzFile::from_memory(archive, "'a.npz'");
    for (std::size_t i = 0; i < npz.keys().size(); ++i) {
      try_to([&] {
        // As callers do, who hold the header against their budget first.
        if (npz.header(i).data_bytes < (1 << 24)) npz.read(i);
      });
    }
  });
}

/// Members: name, whether compressed, contents.
std::vector<std::byte> packed(Parts parts) {
  zip_error_t error;
  zip_source_t* const into = zip_source_buffer_create(nullptr, 0, 0, &error);
  zip_source_keep(into);
  zip_t* const archive = zip_open_from_source(into, ZIP_TRUNCATE, &error);
  require(archive != nullptr, "libzip makes archives");
  while (!parts.empty()) {
    const bool compressed = parts.byte() % 2 == 1;
    const std::string name = parts.text();
    const Bytes contents = parts.piece();
    zip_source_t* const source = zip_source_buffer(archive, contents.data(), contents.size(), 0);
    const zip_int64_t index = zip_file_add(archive, name.c_str(), source, 0);
    if (index < 0) {
      zip_source_free(source);
    } else {
      zip_set_file_compression(archive, static_cast<zip_uint64_t>(index), compressed ? ZIP_CM_DEFLATE : ZIP_CM_STORE,
                               1);
    }
  }
  if (zip_close(archive) != 0) zip_discard(archive);
  std::vector<std::byte> bytes;
  zip_stat_t info;
  if (zip_source_stat(into, &info) == 0 && (info.valid & ZIP_STAT_SIZE) != 0 && zip_source_open(into) == 0) {
    bytes.resize(info.size);
    require(zip_source_read(into, bytes.data(), bytes.size()) >= 0, "libzip reads what it wrote");
    zip_source_close(into);
  }
  zip_source_free(into);
  return bytes;
}

void run_npz(Bytes input) {
  if (as_text(input).starts_with("PK")) return read_all(input);
  const auto archive = packed(Parts(input));
  read_all(archive);
}

const Registered npz_target{{"npz", run_npz, {}, 0, 3}};

// Pictures: JPEG and PNG.

void run_picture(Bytes input) {
  const MemoryFile file(input);
  try_to([&] {
    const auto picture = data::read_picture(file.path());
    require(picture.width > 0 && picture.height > 0, "a picture has pixels");
    require(picture.rgb.size() == 3 * picture.width * picture.height, "each pixel has three bytes");
    if (picture.rgb.size() > 1 << 20) return;
    for (const std::size_t size : {1, 7, 64}) {
      const auto other = data::resized(picture, size, 9);
      require(other.rgb.size() == 3 * 9 * size, "a picture gets the size that is asked for");
    }
  });
}

const Registered picture_target{{"picture", run_picture, {}, 0, 20}};

// .wav files.

void run_wav(Bytes input) {
  try_to([&] {
    const auto wave = data::parse_wav(input, "'a.wav'");
    require(wave.frames() > 0 && wave.values.size() <= input.size(), "a file has the values that it holds");
    std::vector<float> values(std::min<std::uint64_t>(wave.frames(), 4096) + 1);
    data::read_channel(wave, wave.channels - 1, wave.frames() - (values.size() - 1), values);
    require(values.back() == 0, "behind the end is silence");
    if (!wave.is_float) {
      const auto in_range = [](float value) { return value >= -1 && value <= 1; };
      require(std::all_of(values.begin(), values.end(), in_range), "integers become -1 to 1");
    }
  });
}

const Registered wav_target{{"wav", run_wav}};

}  // namespace
}  // namespace detent::fuzz
