#include "data/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/given_inputs.h"
#include "data/layout.h"

namespace detent::data {

/// What samples are cut from: files, or what a caller's stream hands over.
class Units {
 public:
  virtual ~Units() = default;
  /// The next unit, its arrays checked against the inputs; nullopt after the last.
  virtual std::optional<LoadedFile> next() = 0;
  /// Passes over the next unit without reading it; false where that cannot be, or there is none.
  virtual bool pass() { return false; }
  virtual void rewind() = 0;
  /// The first unit, however many were taken; nullopt where it would have to be asked for again.
  virtual std::optional<LoadedFile> first() = 0;
  /// How many there are; 0: not known yet.
  virtual std::size_t count() const = 0;
  /// For messages: "calibration data 'samples/'".
  virtual std::string where() const = 0;
  /// For the report.
  virtual std::vector<std::string> notes() const { return {}; }
};

namespace {

class FileUnits final : public Units {
 public:
  FileUnits(std::filesystem::path path, std::vector<InputSpec> inputs, std::uint64_t memory)
      : path_(std::move(path)),
        memory_(memory),
        inputs_(std::move(inputs)),
        given_(inputs_given(path_, inputs_)),
        files_(find_files(path_, given_)) {}

  std::optional<LoadedFile> next() override {
    if (next_ == files_.names.size()) return std::nullopt;
    const std::size_t index = next_++;
    LoadedFile file = load_file(files_, index, given_, memory_);
    hold_rate(file);
    return with_token_inputs(std::move(file), given_, inputs_);
  }
  bool pass() override {
    if (next_ == files_.names.size()) return false;
    ++next_;
    return true;
  }
  void rewind() override { next_ = 0; }
  std::optional<LoadedFile> first() override {
    return with_token_inputs(load_file(files_, 0, given_, memory_), given_, inputs_);
  }
  std::size_t count() const override { return files_.names.size(); }
  std::string where() const override { return "calibration data " + quoted(path_); }
  std::vector<std::string> notes() const override {
    if (rate_ == 0) return {};
    return {fmt::format("the sound has {} Hz; the model does not say what it expects", rate_)};
  }

 private:
  void hold_rate(const LoadedFile& file) {
    if (rate_ != 0 && file.rate != rate_)
      throw bad_input(fmt::format("{}: has {} Hz, the files before it have {} Hz", file.origin, file.rate, rate_),
                      "resample all files to the rate that the model was trained on");
    rate_ = file.rate;
  }

  std::filesystem::path path_;
  std::uint64_t memory_;
  std::vector<InputSpec> inputs_, given_;
  FileSet files_;
  std::size_t next_ = 0;
  std::uint32_t rate_ = 0;  // of the sound so far
};

// The first unit is kept until the second is taken, so that looking at the first asks for no second pass.
class StreamUnits final : public Units {
 public:
  StreamUnits(SampleStream& stream, std::vector<InputSpec> inputs) : stream_(stream), inputs_(std::move(inputs)) {}

  std::optional<LoadedFile> next() override {
    if (again_) {
      again_ = false;
      return first_;
    }
    first_.reset();
    auto arrays = stream_.next();
    if (!arrays) {
      counted_ = taken_;
      return std::nullopt;
    }
    LoadedFile unit = checked(std::move(*arrays), fmt::format("sample {}", ++taken_));
    if (taken_ == 1) first_ = unit;
    return unit;
  }

  void rewind() override {
    if (taken_ == 0) return;
    if (first_) {
      again_ = true;
      return;
    }
    if (!stream_.can_rewind()) {
      throw usage_error("the samples can be read only once, and are needed again",
                        "give something that can be iterated again, such as a list or files, or fewer segments");
    }
    stream_.rewind();
    taken_ = 0;
  }

  std::optional<LoadedFile> first() override {
    if (taken_ == 0) {
      auto unit = next();
      again_ = unit.has_value();
    }
    return first_;
  }

  std::size_t count() const override { return counted_ > 0 ? counted_ : stream_.size(); }
  std::string where() const override { return "the stream of samples"; }

 private:
  LoadedFile checked(std::vector<NamedArray> arrays, std::string origin) const {
    LoadedFile unit{std::move(origin), {}};
    if (arrays.size() == 1 && arrays.front().name.empty()) arrays.front().name = name_of_unnamed_array(inputs_);
    for (const NamedArray& array : arrays) {
      const auto same = [&](const auto& other) { return other.name == array.name; };
      if (std::none_of(inputs_.begin(), inputs_.end(), same))
        throw bad_input(fmt::format("{}: '{}' is not an input", unit.origin, printable(array.name, 120)),
                        describe_inputs(inputs_));
      if (std::count_if(arrays.begin(), arrays.end(), same) > 1)
        throw bad_input(fmt::format("{}: input '{}' appears twice", unit.origin, printable(array.name, 120)));
    }
    std::vector<std::string> names;
    for (const NamedArray& array : arrays) names.push_back(array.name);
    std::vector<InputSpec> given;
    for (const InputSpec& input : inputs_) {
      if (follows_from_ids(input, inputs_, names)) continue;
      given.push_back(input);
      const auto found =
          std::find_if(arrays.begin(), arrays.end(), [&](const auto& a) { return a.name == input.name; });
      if (found == arrays.end())
        throw bad_input(fmt::format("{}: the input '{}' is missing", unit.origin, printable(input.name, 120)),
                        describe_inputs(inputs_));
      unit.inputs.push_back(fitted(std::move(*found), input, unit.origin));
    }
    return with_token_inputs(std::move(unit), given, inputs_);
  }

  static LoadedArray fitted(NamedArray given, const InputSpec& input, const std::string& origin) {
    LoadedArray loaded;
    loaded.where = origin;
    Array array{static_cast<onnx::DataType>(given.type), std::move(given.shape), given.bytes, std::move(given.owner)};
    if (size_of(array.type, array.shape, origin) != array.bytes.size()) {
      throw bad_input(fmt::format("{}: input '{}' has {} bytes, which is not {}", origin, printable(input.name, 120),
                                  array.bytes.size(), describe(array.type, array.shape)));
    }
    loaded.fit = fit_to_input(input, array.type, array.shape, origin);
    loaded.array = aligned(std::move(array), origin);
    return loaded;
  }

  SampleStream& stream_;
  std::vector<InputSpec> inputs_;
  std::optional<LoadedFile> first_;
  bool again_ = false;  // the first is next
  std::size_t taken_ = 0;
  std::size_t counted_ = 0;  // in a whole pass
};

class BatchedSource final : public SampleSource {
 public:
  BatchedSource(std::unique_ptr<Units> units, std::vector<InputSpec> inputs, const SourceOptions& options)
      : units_(std::move(units)),
        inputs_(std::move(inputs)),
        options_(options),
        batcher_(inputs_, options.batch_size) {}

  std::optional<Sample> next() override {
    while (true) {
      if (options_.max_samples != 0 && seen_ == options_.max_samples) return std::nullopt;
      if (std::optional<Sample> sample = batcher_.take()) {
        note_rows(*sample);
        if (seen_++ % options_.shares == options_.share) return sample;
        continue;
      }
      auto unit = units_->next();
      if (!unit) {
        finish();
        return std::nullopt;
      }
      one_each_ = one_each_ && seen_ == units_taken_;
      known_ = std::max(known_, units_taken_++);
      batcher_.put(std::move(*unit));
      if (!of_first_) of_first_ = batcher_.samples();
    }
  }

  // Files that were read before, and gave one sample each, are not read again for that.
  void skip(std::size_t count) override {
    while (count > 0) {
      if (one_each_ && seen_ == units_taken_ && seen_ < known_ && units_->pass()) {
        ++units_taken_;
        if (seen_++ % options_.shares == options_.share) --count;
      } else if (next()) {
        --count;
      } else {
        return;
      }
    }
  }

  void rewind() override {
    units_->rewind();
    batcher_.reset();
    seen_ = units_taken_ = 0;
  }
  std::size_t sample_count() const override {
    std::size_t count = units_->count();
    if (count > 0) count = static_cast<std::size_t>(std::max(static_cast<double>(count) * samples_of_first(), 1.0));
    return options_.max_samples == 0 ? count : std::min(count, options_.max_samples);
  }
  std::vector<std::string> notes() const override {
    auto notes = units_->notes();
    for (auto& note : batcher_.notes()) notes.push_back(std::move(note));
    if (seen_ == 1 && !many_rows_.empty()) notes.push_back(many_rows_);
    return notes;
  }

 private:
  // A file of all samples, as numpy users save it, is one sample of many rows where the model takes any number.
  void note_rows(const Sample& sample) {
    constexpr std::int64_t kMany = 16;
    if (seen_ > 0 || options_.batch_size > 0 || units_->count() != 1) return;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto& shape = sample.inputs[i].shape;
      const auto& expected = inputs_[i].shape;
      const bool takes_any = expected && !expected->empty() && expected->front() < 0;
      if (!takes_any || shape.empty() || shape.front() < kMany) return;
    }
    many_rows_ = fmt::format("{} is one sample of {} rows: --batch-size 1 takes each row as one", sample.origin,
                             sample.inputs.front().shape[0]);
  }

  double samples_of_first() const {
    if (of_first_) return *of_first_;
    auto unit = units_->first();
    if (!unit) return 1;
    Batcher batcher(inputs_, options_.batch_size);
    batcher.put(std::move(*unit));
    of_first_ = batcher.samples();
    return *of_first_;
  }

  void finish() {
    batcher_.finish();
    if (seen_ > 0) return;
    const std::vector<std::string> notes = batcher_.notes();
    throw bad_input(
        fmt::format("{} gives no sample: {}", units_->where(), notes.empty() ? "it holds no row" : notes.front()),
        "add data; " + describe_inputs(inputs_));
  }

  std::unique_ptr<Units> units_;
  std::vector<InputSpec> inputs_;
  SourceOptions options_;
  Batcher batcher_;
  std::size_t seen_ = 0, units_taken_ = 0;
  bool one_each_ = true;                    // each unit so far has given one sample
  std::size_t known_ = 0;                   // so many units were taken, and have given their samples, in some pass
  mutable std::optional<double> of_first_;  // samples of the first unit
  std::string many_rows_;                   // a note
};

}  // namespace

std::unique_ptr<SampleSource> open_samples(const std::filesystem::path& path, std::vector<InputSpec> inputs,
                                           const SourceOptions& options) {
  return with_given(std::move(inputs), options.input_values, [&](std::vector<InputSpec> held) {
    auto units = std::make_unique<FileUnits>(path, held, options.file_memory);
    return std::make_unique<BatchedSource>(std::move(units), std::move(held), options);
  });
}

std::unique_ptr<SampleSource> open_samples(SampleStream& stream, std::vector<InputSpec> inputs,
                                           const SourceOptions& options) {
  return with_given(std::move(inputs), options.input_values, [&](std::vector<InputSpec> held) {
    auto units = std::make_unique<StreamUnits>(stream, held);
    return std::make_unique<BatchedSource>(std::move(units), std::move(held), options);
  });
}

namespace {

/// Numpy and ONNX both store a bool as a byte of 0 or 1; another value would be undefined behaviour further on.
void check_bools(const Array& array, const std::string& where) {
  if (array.type != onnx::DataType::boolean) return;
  const bool good = std::all_of(array.bytes.begin(), array.bytes.end(), [](std::byte b) { return b <= std::byte{1}; });
  if (!good)
    throw bad_input(fmt::format("{}: a bool is neither 0 nor 1", where), "the file is damaged: write it again");
}

std::uint64_t row_bytes(const Array& array) {
  const auto elements = onnx::element_count(std::span(array.shape).subspan(1));
  return onnx::byte_count(array.type, elements.value_or(0)).value_or(0);
}

/// Keeps the file mapped, and gives the pages of a part back once the part is no longer used: memory follows the
/// samples, not the file.
std::shared_ptr<const void> hold_part(const std::shared_ptr<const MappedFile>& file, std::span<const std::byte> part) {
  // The page on which the part begins was still in use when the part before it was given back.
  constexpr std::uint64_t kOverlap = std::uint64_t{64} << 10;
  const std::uint64_t begin = file->offset_of(part);
  const std::uint64_t from = begin - std::min(begin, kOverlap);
  const auto span = file->bytes().subspan(from, begin - from + part.size());
  return {part.data(), [file, span](const void*) { file->release(span); }};
}

Array rows_of(const LoadedArray& whole, std::int64_t begin, std::int64_t end) {
  const std::uint64_t row = row_bytes(whole.array);
  Array part{whole.array.type, whole.array.shape, {}, whole.array.owner};
  part.shape[0] = end - begin;
  part.bytes =
      whole.array.bytes.subspan(static_cast<std::uint64_t>(begin) * row, static_cast<std::uint64_t>(end - begin) * row);
  if (whole.file != nullptr && !part.bytes.empty()) part.owner = hold_part(whole.file, part.bytes);
  return part;
}

bool fixes_rows(const InputSpec& input) { return input.shape && !input.shape->empty() && input.shape->front() >= 0; }

}  // namespace

Batcher::Batcher(std::vector<InputSpec> inputs, std::int64_t batch_size)
    : inputs_(std::move(inputs)), batch_size_(batch_size) {
  if (batch_size < 0)
    throw usage_error(fmt::format("the batch size {} is negative", batch_size), "0 keeps files as stored");
  for (const InputSpec& input : inputs_) {
    if (!fixes_rows(input)) continue;
    const std::int64_t rows = input.shape->front();
    if (batch_size > 0 && rows != batch_size) {
      throw usage_error(fmt::format("the batch size {} does not match the model: input '{}' is {}", batch_size,
                                    printable(input.name, 120), describe(input)),
                        fmt::format("leave the batch size out, or make it {}", rows));
    }
    fixed_differs_ = fixed_differs_ || (fixed_ && *fixed_ != rows);
    fixed_ = rows;
  }
}

void Batcher::put(LoadedFile file) {
  file_ = std::move(file);
  next_row_ = 0;
  try {
    plan();
  } catch (...) {
    file_.reset();
    throw;
  }
}

void Batcher::plan() {
  mode_ = Mode::as_stored;
  const std::vector<LoadedArray>& arrays = file_->inputs;
  const auto odd = std::find_if(arrays.begin(), arrays.end(), [](const LoadedArray& a) { return a.fit != Fit::exact; });
  if (batch_size_ == 0 && odd == arrays.end()) return;

  rows_ = common_rows();
  if (odd != arrays.end() && (rows_ < 0 || fixed_differs_ || *fixed_ == 0)) {
    const InputSpec& input = inputs_[static_cast<std::size_t>(odd - arrays.begin())];
    throw_mismatch(input, odd->array.type, odd->array.shape, odd->where);
  }
  if (rows_ < 0) {
    std::string lengths;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      lengths += fmt::format("{}'{}' {}", i == 0 ? "" : ", ", printable(inputs_[i].name, 60),
                             describe_shape(arrays[i].array.shape));
    }
    throw bad_input(fmt::format("{}: cannot be split into batches of {}: the inputs differ in axis 0: {}",
                                arrays.front().where, batch_size_, printable(lengths, 400)),
                    "store the same number of rows for every input, or leave the batch size out");
  }
  // A header can claim any number of rows that take no bytes.
  constexpr std::int64_t kMostEmptyRows = 1 << 20;
  const bool is_empty =
      std::all_of(arrays.begin(), arrays.end(), [](const auto& a) { return row_bytes(a.array) == 0; });
  if (is_empty && rows_ > kMostEmptyRows) {
    throw bad_input(fmt::format("{}: its {} rows hold no data", arrays.front().where, rows_),
                    "give arrays without an axis of length 0");
  }
  batch_ = fixed_.value_or(batch_size_);
  mode_ = fixed_ && rows_ < batch_ ? Mode::join : Mode::split;
}

/// The length of axis 0 that all arrays share, or -1.
std::int64_t Batcher::common_rows() const {
  const auto rows = [](const LoadedArray& a) { return a.array.shape.empty() ? -1 : a.array.shape.front(); };
  const std::int64_t first = rows(file_->inputs.front());
  const bool same =
      std::all_of(file_->inputs.begin(), file_->inputs.end(), [&](const LoadedArray& a) { return rows(a) == first; });
  return same ? first : -1;
}

double Batcher::samples() const {
  if (mode_ == Mode::as_stored) return 1;
  const double batches = static_cast<double>(rows_) / static_cast<double>(batch_);
  if (mode_ == Mode::join) return batches;
  return fixed_ ? std::floor(batches) : std::ceil(batches);
}

std::optional<Sample> Batcher::take() {
  if (!file_) return std::nullopt;
  std::optional<Sample> sample;
  switch (mode_) {
    case Mode::as_stored: sample = take_whole(); break;
    case Mode::split: sample = take_piece(); break;
    case Mode::join: sample = take_joined(); break;
  }
  if (sample) {
    for (const Array& array : sample->inputs) check_bools(array, sample->origin);
  }
  return sample;
}

Sample Batcher::take_whole() {
  Sample sample{file_->origin, {}};
  for (LoadedArray& loaded : file_->inputs) sample.inputs.push_back(std::move(loaded.array));
  file_.reset();
  return sample;
}

std::optional<Sample> Batcher::take_piece() {
  const std::int64_t left = rows_ - next_row_;
  const std::int64_t count = std::min(left, batch_);
  if (count == 0 || (fixed_ && count < batch_)) {
    if (count > 0) count_unused_rows(file_->origin, count);
    file_.reset();
    return std::nullopt;
  }
  const std::int64_t end = next_row_ + count;
  Sample sample{count == rows_ ? file_->origin : fmt::format("{}[{}:{}]", file_->origin, next_row_, end), {}};
  for (const LoadedArray& loaded : file_->inputs) sample.inputs.push_back(rows_of(loaded, next_row_, end));
  next_row_ = end;
  if (next_row_ == rows_) file_.reset();
  return sample;
}

std::optional<Sample> Batcher::take_joined() {
  std::optional<Sample> sample;
  while (next_row_ < rows_) {
    if (!partial_) start_partial();
    append_rows(std::min(rows_ - next_row_, batch_ - partial_->rows));
    if (partial_->rows == batch_) {
      sample = Sample{fmt::format("{}..{}", partial_->first, partial_->last), std::move(partial_->inputs)};
      partial_.reset();
    }
  }
  file_.reset();
  return sample;
}

void Batcher::start_partial() {
  Partial partial;
  partial.first = file_->origin;
  for (const LoadedArray& loaded : file_->inputs) {
    Array array{loaded.array.type, loaded.array.shape, {}, nullptr};
    array.shape[0] = batch_;
    const Buffer buffer = allocate(size_of(array.type, array.shape, loaded.where), loaded.where);
    array.bytes = buffer.bytes;
    array.owner = buffer.memory;
    partial.inputs.push_back(std::move(array));
    partial.buffers.push_back(buffer);
  }
  partial_ = std::move(partial);
}

void Batcher::append_rows(std::int64_t count) {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const LoadedArray& loaded = file_->inputs[i];
    const std::span<const std::int64_t> expected = std::span(partial_->inputs[i].shape).subspan(1);
    const std::span<const std::int64_t> found = std::span(loaded.array.shape).subspan(1);
    if (!std::equal(expected.begin(), expected.end(), found.begin(), found.end())) {
      throw bad_input(
          fmt::format("{}: rows of input '{}' are {}, but {} in '{}', so they cannot be joined to the model's "
                      "batch of {}",
                      loaded.where, printable(inputs_[i].name, 120), describe_shape(found), describe_shape(expected),
                      partial_->first, batch_),
          fmt::format("pad them to one length, or store {} rows in each file", batch_));
    }
    const std::uint64_t row = row_bytes(loaded.array);
    const auto from = loaded.array.bytes.subspan(static_cast<std::uint64_t>(next_row_) * row,
                                                 static_cast<std::uint64_t>(count) * row);
    const auto to = partial_->buffers[i].bytes.subspan(static_cast<std::uint64_t>(partial_->rows) * row);
    std::copy(from.begin(), from.end(), to.begin());
  }
  partial_->rows += count;
  partial_->last = file_->origin;
  next_row_ += count;
}

void Batcher::count_unused_rows(const std::string& file, std::int64_t rows) {
  if (!unused_) {
    unused_ = Unused{file, rows};
  } else {
    ++unused_->more_files;
    unused_->more_rows += rows;
  }
}

void Batcher::finish() {
  if (partial_) count_unused_rows(partial_->last, partial_->rows);
  partial_.reset();
}

void Batcher::reset() {
  file_.reset();
  partial_.reset();
  unused_.reset();
}

std::vector<std::string> Batcher::notes() const {
  std::vector<std::string> lines;
  if (!unused_) return lines;
  const std::string_view verb = unused_->rows == 1 ? "does" : "do";
  lines.push_back(fmt::format("{} of '{}' {} not fill the model's batch of {}",
                              count_with_noun(static_cast<std::uint64_t>(unused_->rows), "row"), unused_->file, verb,
                              *fixed_));
  if (unused_->more_files > 0) {
    lines.push_back(fmt::format("{} of {} more likewise",
                                count_with_noun(static_cast<std::uint64_t>(unused_->more_rows), "row"),
                                count_with_noun(unused_->more_files, "file")));
  }
  return lines;
}

SampleSubset::SampleSubset(SampleSource& inner, std::size_t one_in, Kind kind)
    : inner_(inner),
      all_(inner.sample_count()),
      one_in_(std::max<std::size_t>(1, std::min(one_in, all_))),
      kind_(kind) {
  rewind();
}

bool SampleSubset::has(std::size_t sample) const {
  if (all_ == 1) return true;
  return (sample % one_in_ == one_in_ - 1) == (kind_ == Kind::last);
}

std::optional<Sample> SampleSubset::next() {
  std::size_t passed = 0;
  while (next_ + passed < all_ && !has(next_ + passed)) ++passed;
  inner_.skip(passed);
  next_ += passed + 1;
  return inner_.next();
}

void SampleSubset::rewind() {
  inner_.rewind();
  next_ = 0;
}

std::size_t SampleSubset::sample_count() const {
  std::size_t count = 0;
  for (std::size_t sample = 0; sample < all_; ++sample) count += has(sample) ? 1 : 0;
  return count;
}

namespace {

constexpr std::uint64_t kAlignment = 64;

// Of an array in its file; never without padding, so that no file is empty.
std::uint64_t padded(std::uint64_t size) { return size + kAlignment - size % kAlignment; }

}  // namespace

ReplayStream::ReplayStream(SampleStream& inner, std::filesystem::path directory, std::optional<std::uint64_t> most)
    : inner_(inner), directory_(std::move(directory)), most_(most) {}

std::optional<std::vector<NamedArray>> ReplayStream::next() {
  if (at_ < kept_.size()) return read(at_++);
  auto sample = ended_ ? std::nullopt : inner_.next();
  ended_ = !sample;
  if (!sample) return std::nullopt;
  put_down(*sample);
  ++at_;
  return sample;
}

std::filesystem::path ReplayStream::path_of(std::size_t sample) const {
  return directory_ / fmt::format("sample-{}.bin", sample);
}

void ReplayStream::put_down(const std::vector<NamedArray>& sample) {
  Kept kept;
  for (const auto& array : sample) {
    kept.sizes.push_back(array.bytes.size());
    bytes_ += padded(array.bytes.size());
    kept.sample.push_back({array.name, array.type, array.shape, {}, {}});
  }
  if (most_ && bytes_ > *most_)
    throw resource_error(fmt::format("the samples can be read only once, and keeping them takes more than the disk "
                                     "budget of {}",
                                     format_size(*most_)),
                         "raise the budget, or give something that can be iterated again, such as a list or files");
  const auto path = path_of(kept_.size());
  const UniqueFd fd = create_working_file(path);
  constexpr std::byte kZeros[kAlignment]{};
  for (const auto& array : sample) {
    write_all(fd.get(), array.bytes, path);
    write_all(fd.get(), std::span(kZeros, padded(array.bytes.size()) - array.bytes.size()), path);
  }
  kept_.push_back(std::move(kept));
}

std::vector<NamedArray> ReplayStream::read(std::size_t sample) const {
  const auto& kept = kept_[sample];
  auto arrays = kept.sample;
  if (arrays.empty()) return arrays;
  const auto file = MappedFile::open(path_of(sample), "working file");
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    arrays[i].bytes = file->bytes().subspan(at, kept.sizes[i]);
    arrays[i].owner = file;
    at += padded(kept.sizes[i]);
  }
  return arrays;
}

}  // namespace detent::data
