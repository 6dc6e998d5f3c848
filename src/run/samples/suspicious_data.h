// Samples that are hardly what the model will see.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "data/sample.h"
#include "onnx/model.h"

namespace detent::run {

/// A note for each: samples that repeat others, inputs that hold one value only, and inputs of another scale than the
/// weights and biases of the convolutions that read them were made for. Throws bad_input where no value was seen.
std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics);

/// What single samples show, and sums over all of them do not.
class OddInputs {
 public:
  explicit OddInputs(const onnx::Model& model);

  void add(const data::Sample& sample);
  /// A note for each: samples that are one number each, not all the same, and places in a table that are counted from
  /// its end.
  std::vector<std::string> notes() const;
  /// Throws bad_input where one of the inputs of sample `origin` looks up what is not in a table.
  void refuse_beyond_tables(std::span<const data::Array> inputs, const std::string& origin) const;

 private:
  struct Input {
    std::string name;
    std::string table;         // that its integers are places in; empty: none
    std::int64_t entries = 0;  // of the table
    std::int64_t least = 0;
    std::uint64_t negative = 0, even = 0;  // samples with such places, and of one number each
    std::optional<float> number = {};      // of the first of those
    bool differs = false;                  // from that of another
  };

  std::vector<Input> inputs_;
  std::uint64_t samples_ = 0;
};

}  // namespace detent::run
