#include "data/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/numpy.h"
#include "onnx/tensor.h"
#include "onnx/wire.h"

namespace detent::data {
namespace {

namespace fs = std::filesystem;

LoadedArray load_npy(const fs::path& path, const InputSpec& input) {
  std::string where = quoted(path);
  std::shared_ptr<const MappedFile> file = MappedFile::open(path, "calibration file");
  NpyHeader header = parse_npy_header(file->bytes(), file->bytes().size(), where);
  std::vector<std::int64_t> shape = header.shape;
  const Fit fit = fit_to_input(input, header.type, shape, where);
  Array array = npy_array(header, file->bytes().subspan(header.data_offset), file, where);
  array.shape = std::move(shape);
  if (array.owner != file) file.reset();
  return {std::move(array), fit, std::move(where), std::move(file)};
}

[[noreturn]] void throw_too_large(const fs::path& path, std::uint64_t bytes, std::uint64_t memory,
                                  std::string_view suggestion) {
  throw resource_error(fmt::format("{} takes {} in memory, and there are {} for it", quoted(path), format_size(bytes),
                                   format_size(memory)),
                       std::string(suggestion));
}

/// The shape that sound takes for an input: a row for each L frames, of which a shorter end is left out; sound that is
/// shorter than L is one row. Without a fixed L all of it is one row.
struct SoundShape {
  std::int64_t rows = 1;
  std::int64_t channels = 1;
  std::int64_t length = 0;         // frames of a row
  std::vector<std::int64_t> dims;  // [N, L], [N, C, L], [N, L, C], [L, C] or [L]
  bool channels_last = false;
};

SoundShape shape_of_sound(const InputSpec& input, const Waveform& wave, const std::string& where) {
  const auto frames = static_cast<std::int64_t>(wave.frames());
  const auto given = static_cast<std::int64_t>(wave.channels);
  const auto shape = input.shape.value_or(std::vector<std::int64_t>{-1, -1});
  if (input.type != onnx::DataType::float32 || shape.empty() || shape.size() > 3)
    throw bad_input(
        fmt::format("{}: the input '{}' is {}, which takes no sound", where, printable(input.name, 120),
                    describe(input)),
        "sound is float32, [N, samples], [N, channels, samples], [N, samples, channels], [samples, channels] "
        "or [samples]: save what the model reads as arrays");
  SoundShape sound;
  // A last axis as long as there are channels, beside one that is not: as Keras and TensorFlow have it.
  const auto before = shape.size() < 2 ? 0 : shape[shape.size() - 2];
  const bool without_rows = shape.size() == 1 || (shape.size() == 2 && shape[1] == given && before != 1);
  const bool has_channels = shape.size() == (without_rows ? 2 : 3);
  sound.channels_last = has_channels && shape.back() == given && before != given;
  const std::int64_t channels = has_channels ? shape[shape.size() - (sound.channels_last ? 1 : 2)] : 1;
  sound.channels = has_channels && channels < 0 ? given : channels;
  if (sound.channels != given)
    throw bad_input(fmt::format("{}: has {}, the input '{}' takes {}", where, count_with_noun(wave.channels, "channel"),
                                printable(input.name, 120), sound.channels),
                    "mix the channels before");
  const std::int64_t fixed = sound.channels_last ? before : shape.back();
  sound.length = !without_rows && fixed > 0 ? fixed : frames;
  sound.rows = without_rows ? 1 : std::max<std::int64_t>(frames / sound.length, 1);
  if (!without_rows) sound.dims.push_back(sound.rows);
  if (has_channels && !sound.channels_last) sound.dims.push_back(sound.channels);
  sound.dims.push_back(sound.length);
  if (sound.channels_last) sound.dims.push_back(sound.channels);
  return sound;
}

void read_sound(const Waveform& wave, const SoundShape& sound, std::span<float> values) {
  const auto length = static_cast<std::size_t>(sound.length);
  const auto channels = static_cast<std::size_t>(sound.channels);
  std::vector<float> own(sound.channels_last ? length : 0);
  for (std::size_t at = 0; at < static_cast<std::size_t>(sound.rows) * channels; ++at) {
    const auto channel = at % channels, first = at / channels * length;
    const auto place = values.subspan(at * length, length);
    read_channel(wave, static_cast<std::uint32_t>(channel), first, sound.channels_last ? std::span<float>(own) : place);
    for (std::size_t i = 0; i < own.size(); ++i) values[(first + i) * channels + channel] = own[i];
  }
}

LoadedFile load_wav(const fs::path& path, const InputSpec& input, std::uint64_t memory) {
  const std::string where = quoted(path);
  const auto file = MappedFile::open(path, "calibration file");
  const Waveform wave = parse_wav(file->bytes(), where);
  const auto sound = shape_of_sound(input, wave, where);
  Array array{onnx::DataType::float32, sound.dims, {}, nullptr};
  const std::uint64_t bytes = size_of(array.type, array.shape, where);
  if (memory > 0 && bytes > memory) throw_too_large(path, bytes, memory, "cut it into shorter files");
  const Buffer buffer = allocate(bytes, where);
  read_sound(wave, sound, {reinterpret_cast<float*>(buffer.bytes.data()), bytes / sizeof(float)});
  array.bytes = buffer.bytes;
  array.owner = buffer.memory;
  const Fit fit = fit_to_input(input, array.type, array.shape, where);
  LoadedFile loaded{.origin = printable(path.filename().string()), .inputs = {}, .rate = wave.rate};
  loaded.inputs.push_back({std::move(array), fit, where, nullptr});
  return loaded;
}

/// The member that feeds each input; throws when keys and inputs are not the same.
std::vector<std::size_t> match_keys(const NpzFile& npz, const std::string& file, std::span<const InputSpec> inputs) {
  const std::vector<std::string>& keys = npz.keys();
  if (inputs.size() == 1 && keys.size() == 1 && keys.front() == "arr_0") return {0};
  const std::string hint = describe_inputs(inputs);
  std::vector<std::size_t> order;
  for (const InputSpec& input : inputs) {
    const auto found = std::find(keys.begin(), keys.end(), input.name);
    if (found == keys.end()) {
      std::string have;
      for (const std::string& key : keys) have += (have.empty() ? "'" : ", '") + printable(key, 60) + "'";
      throw bad_input(fmt::format("{}: the key '{}' is missing (found: {})", file, printable(input.name, 120),
                                  have.empty() ? "no key" : printable(have, 400)),
                      hint);
    }
    order.push_back(static_cast<std::size_t>(found - keys.begin()));
  }
  for (const std::string& key : keys) {
    const bool known = std::any_of(inputs.begin(), inputs.end(), [&](const InputSpec& i) { return i.name == key; });
    if (!known) throw bad_input(fmt::format("{}: the key '{}' is not an input", file, printable(key, 120)), hint);
  }
  return order;
}

std::vector<LoadedArray> load_npz(const fs::path& path, std::span<const InputSpec> inputs, std::uint64_t memory) {
  const NpzFile npz = NpzFile::open(path);
  const std::vector<std::size_t> order = match_keys(npz, quoted(path), inputs);
  std::vector<LoadedArray> arrays;
  std::vector<std::vector<std::int64_t>> shapes;
  // All headers first: no memory is spent on a sample of which one part does not fit.
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const NpyHeader header = npz.header(order[i]);
    shapes.push_back(header.shape);
    const Fit fit = fit_to_input(inputs[i], header.type, shapes.back(), npz.where(order[i]));
    arrays.push_back({{}, fit, npz.where(order[i]), nullptr});
    bytes += std::min(header.data_bytes, std::numeric_limits<std::uint64_t>::max() - bytes);
  }
  if (memory > 0 && bytes > memory)
    throw_too_large(path, bytes, memory, "store fewer rows in a file, or use .npy files, which are read in place");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    arrays[i].array = npz.read(order[i]);
    arrays[i].array.shape = std::move(shapes[i]);
  }
  return arrays;
}

struct PbFile {
  PbTensor tensor;
  std::string where;
  std::shared_ptr<const MappedFile> file;
};

std::optional<std::size_t> input_named(std::string_view name, std::span<const InputSpec> inputs) {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const InputSpec& i) { return i.name == name; });
  if (name.empty() || found == inputs.end()) return std::nullopt;
  return static_cast<std::size_t>(found - inputs.begin());
}

/// The files of a folder by their N, which must be 0 to the number of inputs less one.
std::vector<PbFile> read_test_set(const fs::path& folder, std::span<const InputSpec> inputs) {
  std::vector<std::optional<std::string>> names(inputs.size());
  for (const std::string& name : list_folder(folder).files) {
    const auto n = pb_index(name);
    if (!n) continue;
    if (*n >= names.size() || names[*n]) {
      throw bad_input(names.size() > *n ? fmt::format("{}: input {} appears twice", quoted(folder), *n)
                                        : fmt::format("{}: the model has no input {}", quoted(folder / name), *n),
                      describe_inputs(inputs));
    }
    names[*n] = name;
  }
  std::vector<PbFile> files;
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (!names[n]) {
      throw bad_input(fmt::format("{} is missing: it would feed the input '{}'",
                                  quoted(folder / fmt::format("input_{}.pb", n)), printable(inputs[n].name, 120)),
                      describe_inputs(inputs));
    }
    const fs::path path = folder / *names[n];
    std::shared_ptr<const MappedFile> file = MappedFile::open(path, "calibration file");
    PbTensor tensor = read_pb(file);
    files.push_back({std::move(tensor), quoted(path), std::move(file)});
  }
  return files;
}

/// Where each file goes: by name when the names are the inputs' names, else by number.
std::vector<std::size_t> match_tensors(const std::vector<PbFile>& files, std::span<const InputSpec> inputs) {
  std::vector<std::size_t> by_name(files.size(), files.size());
  std::size_t named = 0;
  for (std::size_t n = 0; n < files.size(); ++n) {
    const auto input = input_named(files[n].tensor.name, inputs);
    if (input && by_name[*input] == files.size()) {
      by_name[*input] = n;
      ++named;
    }
  }
  if (named == files.size()) return by_name;
  std::vector<std::size_t> by_number(files.size());
  for (std::size_t n = 0; n < files.size(); ++n) {
    by_number[n] = n;
    const auto input = input_named(files[n].tensor.name, inputs);
    if (input && *input != n) {
      throw bad_input(fmt::format("{}: the tensor is named '{}', but input {} of the model is '{}'", files[n].where,
                                  printable(files[n].tensor.name, 120), n, printable(inputs[n].name, 120)),
                      "name all tensors of the folder as the inputs, each once, or none");
    }
  }
  return by_number;
}

std::vector<LoadedArray> load_test_set(const fs::path& folder, std::span<const InputSpec> inputs) {
  std::vector<PbFile> files = read_test_set(folder, inputs);
  const std::vector<std::size_t> order = match_tensors(files, inputs);
  std::vector<LoadedArray> arrays;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    PbFile& from = files[order[i]];
    Array array = std::move(from.tensor.array);
    const Fit fit = fit_to_input(inputs[i], array.type, array.shape, from.where);
    if (array.owner != from.file) from.file.reset();
    arrays.push_back({std::move(array), fit, std::move(from.where), std::move(from.file)});
  }
  return arrays;
}

}  // namespace

LoadedFile load_file(const FileSet& files, std::size_t index, std::span<const InputSpec> inputs, std::uint64_t memory) {
  const std::string& name = files.names.at(index);
  LoadedFile loaded{printable(name), {}};
  switch (files.layout) {
    case Layout::npz: loaded.inputs = load_npz(files.root / name, inputs, memory); break;
    case Layout::npy: loaded.inputs.push_back(load_npy(files.root / name, inputs.front())); break;
    case Layout::wav: loaded = load_wav(files.root / name, inputs.front(), memory); break;
    case Layout::per_input:
      for (const InputSpec& input : inputs) loaded.inputs.push_back(load_npy(files.root / input.name / name, input));
      break;
    case Layout::test_sets: loaded.inputs = load_test_set(files.root / name, inputs); break;
  }
  return loaded;
}

namespace {

using Dims = std::span<const std::int64_t>;

bool dim_fits(std::int64_t expected, std::int64_t found) noexcept { return expected < 0 || expected == found; }

bool dims_fit(Dims expected, Dims found) noexcept {
  return std::equal(expected.begin(), expected.end(), found.begin(), found.end(), dim_fits);
}

bool npy_can_hold(onnx::DataType type) noexcept {
  constexpr std::array kTypes{onnx::DataType::boolean, onnx::DataType::int8,    onnx::DataType::int16,
                              onnx::DataType::int32,   onnx::DataType::int64,   onnx::DataType::uint8,
                              onnx::DataType::uint16,  onnx::DataType::uint32,  onnx::DataType::uint64,
                              onnx::DataType::float16, onnx::DataType::float32, onnx::DataType::float64};
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

std::string hint_for(const InputSpec& input, onnx::DataType type, Dims found) {
  const std::string_view name = onnx::name_of(input.type);
  if (type != input.type) {
    const bool is_picture = type == onnx::DataType::uint8 && input.type == onnx::DataType::float32;
    if (is_picture)
      return "the model's input is float32: save what the application makes of the bytes before it runs the model, "
             "such as array.astype('float32') / 255, minus mean and divided by deviation";
    if (npy_can_hold(input.type)) return fmt::format("save it as {0}: array.astype('{0}')", name);
    return fmt::format(".npy and .npz cannot hold {}: use test_data_set_*/input_N.pb", name);
  }
  const Dims expected = *input.shape;
  if (expected.size() == 4 && found.size() == 4) {
    const std::array<std::int64_t, 4> channels_last{found[0], found[3], found[1], found[2]};
    if (dims_fit(expected, channels_last)) return "the channels are last: save array.transpose(0, 3, 1, 2)";
  }
  if (expected.size() == 4 && found.size() == 3) {
    const std::array<std::int64_t, 4> as_is{1, found[0], found[1], found[2]};
    const std::array<std::int64_t, 4> channels_last{1, found[2], found[0], found[1]};
    if (!dims_fit(expected, as_is) && dims_fit(expected, channels_last))
      return "the channels are last and there is no batch axis: save array.transpose(2, 0, 1)[None]";
  }
  if (found.size() + 1 == expected.size()) return "save it with a leading batch axis: array[None]";
  return fmt::format("save arrays of shape {}", describe_shape(expected));
}

}  // namespace

void throw_mismatch(const InputSpec& input, onnx::DataType type, const std::vector<std::int64_t>& shape,
                    const std::string& where) {
  throw bad_input(fmt::format("{}: input '{}' expects {}, found {}", where, printable(input.name, 120), describe(input),
                              describe(type, shape)),
                  hint_for(input, type, shape));
}

Fit fit_to_input(const InputSpec& input, onnx::DataType type, std::vector<std::int64_t>& shape,
                 const std::string& where) {
  if (type != input.type) throw_mismatch(input, type, shape, where);
  if (!input.shape) return Fit::exact;
  const Dims expected = *input.shape;
  if (dims_fit(expected, shape)) return Fit::exact;
  if (expected.empty()) throw_mismatch(input, type, shape, where);
  const Dims row = expected.subspan(1);
  if (shape.size() == row.size() && (expected[0] == 1 || expected[0] < 0) && dims_fit(row, shape)) {
    shape.insert(shape.begin(), 1);
    return Fit::exact;
  }
  if (shape.size() != expected.size() || !dims_fit(row, Dims(shape).subspan(1))) {
    throw_mismatch(input, type, shape, where);
  }
  return Fit::rows_differ;
}

namespace {

constexpr const char* kHint = "write it as one ONNX TensorProto with its data inside";

onnx::Tensor read_tensor(std::string_view message, const std::shared_ptr<const MappedFile>& file,
                         const std::filesystem::path& path, const std::string& where) {
  try {
    onnx::ExternalFiles beside(path);
    return onnx::read_tensor(onnx::Wire(message, file), file, beside, where);
  } catch (const Error& e) {
    // A name inside the file may hold anything, and the reader speaks of models in its hints.
    if (e.kind() != ErrorKind::bad_input) throw;
    const std::string text = printable(e.what());
    throw bad_input(text.starts_with(where) ? text : fmt::format("{}: {}", where, text), kHint);
  }
}

PbTensor read(std::string_view message, const std::shared_ptr<const MappedFile>& file,
              const std::filesystem::path& path, const std::string& where) {
  onnx::Tensor tensor = read_tensor(message, file, path, where);
  if (tensor.is_external) throw bad_input(fmt::format("{}: the tensor keeps its data in another file", where), kHint);
  if (onnx::bits_of(tensor.type) < 8) {
    throw bad_input(
        fmt::format("{}: not a tensor of numbers (data_type {})", where, static_cast<std::int32_t>(tensor.type)),
        kHint);
  }
  Array array{tensor.type, std::move(tensor.dims), tensor.data.bytes(), file};
  if (file == nullptr || !file->contains(array.bytes)) {
    array.owner = std::make_shared<const onnx::TensorData>(tensor.data);
  }
  return {std::move(tensor.name), aligned(std::move(array), where)};
}

constexpr std::size_t kTag = 4;         // bytes of a chunk's name
constexpr std::size_t kChunk = 8;       // name and size
constexpr std::size_t kFormat = 16;     // the part of "fmt " that every file has
constexpr std::size_t kSubFormat = 24;  // where the type stands in an extensible "fmt "
constexpr std::uint64_t kExtensible = 0xFFFE, kPcm = 1, kFloat = 3;

std::uint64_t number(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

Error damaged(const std::string& where, std::string_view how) {
  return bad_input(fmt::format("{}: {}", where, how), "write the file again");
}

Waveform format_of(std::span<const std::byte> chunk, const std::string& where) {
  if (chunk.size() < kFormat) throw damaged(where, "its format is truncated");
  std::uint64_t type = number(chunk.subspan(0, 2));
  const std::uint64_t channels = number(chunk.subspan(2, 2)), bits = number(chunk.subspan(14, 2));
  if (type == kExtensible && chunk.size() >= kSubFormat + 2) type = number(chunk.subspan(kSubFormat, 2));
  const bool is_float = type == kFloat && bits == 32;
  if (!is_float && !(type == kPcm && bits >= 8 && bits <= 32 && bits % 8 == 0))
    throw bad_input(fmt::format("{}: values of type {} with {} bits", where, type, bits),
                    "save it as PCM of 8, 16, 24 or 32 bits, or as float32");
  if (channels == 0) throw damaged(where, "it has no channel");
  return {.rate = static_cast<std::uint32_t>(number(chunk.subspan(4, 4))),
          .channels = static_cast<std::uint32_t>(channels),
          .bytes_per_value = static_cast<std::uint32_t>(bits / 8),
          .is_float = is_float,
          .values = {}};
}

float value_at(const Waveform& wave, std::uint64_t index) {
  const auto bytes = wave.values.subspan(index * wave.bytes_per_value, wave.bytes_per_value);
  if (wave.is_float) {
    float value = 0;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  const auto raw = static_cast<std::int64_t>(number(bytes));
  const auto half = std::int64_t{1} << (8 * wave.bytes_per_value - 1);
  // Bytes are stored with an offset, wider integers in two's complement.
  const std::int64_t value = wave.bytes_per_value == 1 ? raw - half : raw >= half ? raw - 2 * half : raw;
  return static_cast<float>(static_cast<double>(value) / static_cast<double>(half));
}

}  // namespace

PbTensor read_pb(const std::shared_ptr<const MappedFile>& file) {
  return read(as_text(file->bytes()), file, file->path(), quoted(file->path()));
}

PbTensor parse_pb(std::string_view message, const std::string& where) { return read(message, nullptr, {}, where); }

Waveform parse_wav(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kChunk + kTag || as_text(file.first(kTag)) != "RIFF" ||
      as_text(file.subspan(kChunk, kTag)) != "WAVE")
    throw damaged(where, "not a .wav file (RIFF/WAVE)");
  std::optional<Waveform> wave;
  std::size_t at = kChunk + kTag;
  while (file.size() - at >= kChunk) {
    const auto name = as_text(file.subspan(at, kTag));
    const auto size = static_cast<std::size_t>(number(file.subspan(at + kTag, kTag)));
    at += kChunk;
    if (size > file.size() - at)
      throw damaged(where, fmt::format("truncated: a part of {} bytes, of which {} are there", size, file.size() - at));
    const auto chunk = file.subspan(at, size);
    if (name == "fmt ") wave = format_of(chunk, where);
    if (name == "data") {
      if (!wave) throw damaged(where, "its values come before their format");
      wave->values = chunk.first(size - size % (std::size_t{wave->bytes_per_value} * wave->channels));
      if (wave->values.empty()) throw bad_input(fmt::format("{}: holds no sound", where), "leave the file out");
      return *wave;
    }
    at += std::min(size + size % 2, file.size() - at);  // parts begin at even places
  }
  throw damaged(where, "it has no values");
}

void read_channel(const Waveform& wave, std::uint32_t channel, std::uint64_t first_frame, std::span<float> out) {
  const std::uint64_t frames = wave.frames();
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t frame = first_frame + i;
    out[i] = frame < frames ? value_at(wave, frame * wave.channels + channel) : 0.0F;
  }
}

}  // namespace detent::data
