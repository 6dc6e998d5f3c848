// Solutions, and what leads to them, saved as they are found.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "detent/quantize.h"
#include "onnx/tensor.h"
#include "shim/ranks.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/solver.h"
#include "store/spool.h"

namespace detent::solve {

/// A file that ends with the fingerprint of what is before it. It is there after finish(), or not at all.
class SealedFile {
 public:
  explicit SealedFile(const std::filesystem::path& path) : file_(path) {}
  void write(std::span<const std::byte> bytes);
  /// Without the fingerprint.
  std::uint64_t size() const noexcept { return file_.size(); }
  void finish();

 private:
  AtomicFile file_;
  Hasher hasher_;
};

/// What is before the fingerprint; nothing, not even a file, where there is none or a damaged one. `what` it is, in
/// messages.
struct SealedBytes {
  std::shared_ptr<const MappedFile> file;
  std::span<const std::byte> bytes;
};
SealedBytes load_sealed(const std::filesystem::path& path, const char* what);

struct SolvedLayer {
  LayerTuning tuning;
  std::vector<std::byte> integers;  // as stored
  std::vector<std::byte> bias;      // as stored; empty: stays as it was
};

/// The same, as it lies in the file.
struct StoredLayer {
  LayerTuning tuning;
  onnx::TensorData integers;
  onnx::TensorData bias;
};

class SolvedLayers {
 public:
  /// `ranks`: that have solved each stage together; null: this process is alone.
  explicit SolvedLayers(std::filesystem::path directory, shim::Ranks* ranks = nullptr, std::stop_token stop = {})
      : directory_(std::move(directory)), ranks_(ranks), stop_(std::move(stop)) {}

  /// Collective: what this or an earlier process of rank 0 found for this stage of so many layers. Nothing when it is
  /// damaged, or of other layers: the stage is then solved again, with the same result.
  std::optional<std::vector<StoredLayer>> load(std::size_t stage, std::size_t layers) const;
  /// The same after save(). Throws resource when it is damaged.
  std::vector<StoredLayer> load_saved(std::size_t stage, std::size_t layers) const;
  /// By rank 0: others take what it has found.
  void save(std::size_t stage, const std::vector<SolvedLayer>& layers) const;

 private:
  std::filesystem::path file_of(std::size_t stage) const;
  std::optional<std::vector<StoredLayer>> read(std::size_t stage, std::size_t layers) const;
  void take_from_first(std::size_t stage) const;

  std::filesystem::path directory_;
  shim::Ranks* ranks_;
  std::stop_token stop_;
};

/// The state of a layer that is being solved, in a file of the run's directory.
class LayerState final : public SolverState {
 public:
  /// `seconds`: how often it is due.
  LayerState(std::filesystem::path file, double seconds) : file_(std::move(file)), seconds_(seconds) {}

  /// Nothing when it is damaged: the layer then starts again, with the same result.
  Stored load() override;
  bool is_due() const override { return Clock::now() - saved_ >= seconds_; }
  void save(std::span<const std::span<const std::byte>> parts) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::filesystem::path file_;
  std::chrono::duration<double> seconds_;
  Clock::time_point saved_ = Clock::now();
};

/// Inputs and targets of one layer for some of the samples, in a lane of the spool that is closed at the end.
class StoredSamples final : public LayerSamples {
 public:
  /// `name` of the lane.
  StoredSamples(store::Spool& spool, const std::string& name);
  ~StoredSamples() override;
  StoredSamples(const StoredSamples&) = delete;
  StoredSamples& operator=(const StoredSamples&) = delete;

  /// Input, target, and the float branch's input where it is needed.
  void add(store::Record record);
  std::size_t count() const override { return count_; }
  SampleRef get(std::size_t i) override;
  std::optional<store::RecordOnDisk> resting(std::size_t i) const override;
  /// Begins to read those that are not being read yet, each on a thread of its own.
  void prefetch(std::span<const std::size_t> coming) override;

 private:
  std::optional<store::Record> take(std::size_t i);

  store::Spool& spool_;
  store::Spool::Lane lane_;
  std::size_t count_ = 0;
  std::map<std::size_t, std::future<std::optional<store::Record>>> ahead_;
};

}  // namespace detent::solve
