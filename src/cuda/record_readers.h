// The readers of stored samples, one for each device.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cuda/record_reader.h"
#include "cuda/rows.h"

namespace detent::cuda {

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

}  // namespace detent::cuda
