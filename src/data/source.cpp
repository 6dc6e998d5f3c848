#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/batch.h"
#include "data/formats/decoder.h"
#include "data/formats/text.h"
#include "data/given_values.h"
#include "data/layout.h"
#include "data/load.h"
#include "data/sample.h"
#include "data/units.h"

namespace detent::data {
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
    auto units = stream_units(stream, held);
    return std::make_unique<BatchedSource>(std::move(units), std::move(held), options);
  });
}

}  // namespace detent::data
