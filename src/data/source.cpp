#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "data/batch.h"
#include "data/layout.h"
#include "data/load.h"
#include "data/sample.h"
#include "data/text.h"

namespace detent::data {
namespace {

class FileSource final : public SampleSource {
 public:
  FileSource(const std::filesystem::path& path, std::vector<InputSpec> inputs, const SourceOptions& options)
      : path_(path),
        files_(find_files(path, inputs)),
        inputs_(std::move(inputs)),
        options_(options),
        batcher_(inputs_, options.batch_size) {}

  std::optional<Sample> next() override {
    while (true) {
      if (options_.max_samples != 0 && seen_ == options_.max_samples) return std::nullopt;
      if (std::optional<Sample> sample = batcher_.take()) {
        if (seen_++ % options_.shares == options_.share) return sample;
        continue;
      }
      if (next_file_ == files_.names.size()) {
        finish();
        return std::nullopt;
      }
      const std::size_t index = next_file_++;
      batcher_.put(load_file(files_, index, inputs_));
    }
  }

  void rewind() override {
    batcher_.reset();
    next_file_ = 0;
    seen_ = 0;
  }
  std::size_t file_count() const override { return files_.names.size(); }
  std::vector<std::string> notes() const override { return batcher_.notes(); }

 private:
  void finish() {
    batcher_.finish();
    if (seen_ > 0) return;
    const std::vector<std::string> notes = batcher_.notes();
    throw bad_input(fmt::format("calibration data {} gives no sample: {}", quoted(path_),
                                notes.empty() ? "no file holds a row" : notes.front()),
                    "add data; " + describe_inputs(inputs_));
  }

  std::filesystem::path path_;
  FileSet files_;
  std::vector<InputSpec> inputs_;
  SourceOptions options_;
  Batcher batcher_;
  std::size_t next_file_ = 0;
  std::size_t seen_ = 0;
};

}  // namespace

std::unique_ptr<SampleSource> open_samples(const std::filesystem::path& path, std::vector<InputSpec> inputs,
                                           const SourceOptions& options) {
  return std::make_unique<FileSource>(path, std::move(inputs), options);
}

}  // namespace detent::data
