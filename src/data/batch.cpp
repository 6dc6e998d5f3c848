#include "data/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "base/error.h"
#include "data/formats/text.h"

namespace detent::data {
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

}  // namespace detent::data
