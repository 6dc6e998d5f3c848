// Layers solved in mini-batches on devices, and errors measured there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/gram_rows.h"
#include "detent/config.h"
#include "detent/device.h"
#include "shim/cuda_driver.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver.h"
#include "store/device_route.h"

namespace detent::cuda {

// Records of the spool, read into a GPU's memory by the way that was asked for or is the fastest.

/// Reads for one device, which must outlive this and is current wherever this is used. The choice is made at once: it
/// may open cuFile and measure, which takes some tenths of a second.
class RecordReader : public store::DeviceReader {
 public:
  /// `directory`: where the records' files are. Throws device where `mode` is on and cannot be.
  RecordReader(Device& device, GdsMode mode, const std::filesystem::path& directory,
               const shim::CuFilePlaces& places = {});
  ~RecordReader() override;

  void read(const store::RecordOnDisk& record, void* to) override;

  const store::DeviceRoute& route() const noexcept { return route_; }
  /// One sentence for the notes of a run.
  std::string note() const;

 private:
  class Buffers;
  std::string refusal(const std::filesystem::path& directory);
  double rate(const store::DeviceRoute& route, const std::filesystem::path& directory);
  std::unique_ptr<store::DeviceReader> open(const store::DeviceRoute& route);

  Device& device_;
  shim::CuFilePlaces places_;
  std::shared_ptr<const shim::CuFile> cufile_;
  store::DeviceRoute route_;
  std::unique_ptr<store::DeviceReader> reader_;
};

// The readers of stored samples, one for each device.

/// Each is made when the first sample is to be read. One thread at a time.
class RecordReaders {
 public:
  /// The devices must outlive it.
  RecordReaders(Devices& devices, GdsMode mode, shim::CuFilePlaces places = {})
      : devices_(devices), mode_(mode), places_(std::move(places)), readers_(devices.size()) {}

  /// `directory`: where the records' files are. Throws as RecordReader does.
  RecordReader& of(std::size_t device, const std::filesystem::path& directory) {
    auto& reader = readers_[device];
    if (reader) return *reader;
    Device& on = devices_[device]->current();
    reader = std::make_unique<RecordReader>(on, mode_, directory, places_);
    if (on.clock().log() != nullptr)
      on.clock().log()->set_storage(on.number(), reader->route().name() + ": " + reader->route().reason);
    return *reader;
  }
  /// What was chosen, of those that were needed.
  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    for (const auto& reader : readers_) {
      if (reader) notes.push_back(reader->note());
    }
    return notes;
  }

 private:
  Devices& devices_;
  GdsMode mode_;
  shim::CuFilePlaces places_;
  std::vector<std::unique_ptr<RecordReader>> readers_;
};

/// A layer's problem in mini-batches.
struct StreamedLayer {
  const solve::QuantizedWeights& weights;
  const solve::LayerGeometry& geometry;
  solve::LayerSamples& samples;
  RecordReaders* readers = nullptr;  // what reads samples that rest on disk; null: they come through the host
};

/// As solve::solve_streamed, but that mini-batches are of whole samples. `kernels` of the CPU are for coordinate
/// descent afterwards.
solve::Solution solve_streamed(Devices& devices, const DeviceConfig& on, const StreamedLayer& layer,
                               std::span<const float> bias, const FinetuneConfig& config, const solve::Kernels& kernels,
                               const solve::SolveControl& control);

/// As solve::reconstruction_error; in float32 whatever the precision of steps.
double reconstruction_error(Devices& devices, const StreamedLayer& layer, const solve::Solution& solution,
                            const solve::SolveControl& control);

// A layer's samples as mini-batches of whole samples, which convolutions take as they are.

/// One sample of a mini-batch, its input mixed of both branches if that is asked for.
struct Drawn {
  std::optional<store::RecordOnDisk> resting;  // where it is at rest; else `sample` has it
  solve::SampleRef sample;
  std::vector<float> mixed;
  std::size_t positions = 0;

  const solve::Shape& shape() const { return resting ? resting->parts[0].shape : sample.input_shape; }
  const float* input() const { return mixed.empty() ? sample.input.data() : mixed.data(); }
};

using SampleBatch = std::vector<Drawn>;

/// Which sample comes when: all of them in a random order, then all in another. Both the order and the mix follow from
/// config.seed.
class SampleBatches {
 public:
  /// All must outlive this.
  /// `from_disk`: samples that rest on disk as they were put are left there.
  SampleBatches(solve::LayerSamples& samples, const solve::LayerGeometry& geometry, const FinetuneConfig& config,
                std::size_t threads, bool from_disk);

  SampleBatch load(std::size_t iteration);

 private:
  void prefetch(std::uint64_t turn);
  Drawn draw(std::uint64_t turn);

  solve::LayerSamples& samples_;
  const solve::LayerGeometry& geometry_;
  const FinetuneConfig& config_;
  std::size_t threads_;
  bool from_disk_;
  solve::SampleOrder order_;
};

}  // namespace detent::cuda
