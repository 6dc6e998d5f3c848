// What samples are cut from: files, or what a caller's stream hands over.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/load.h"
#include "data/sample.h"
#include "detent/samples.h"

namespace detent::data {

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

/// The first unit is kept until the second is taken, so that looking at the first asks for no second pass.
std::unique_ptr<Units> stream_units(SampleStream& stream, std::vector<InputSpec> inputs);

}  // namespace detent::data
