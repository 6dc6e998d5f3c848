// What tells one model or one sample from another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "data/sample.h"
#include "onnx/model.h"

namespace detent::run {

/// Of the model's file and of all tensors in data files that it refers to: a sum over the parts, so that each can be
/// taken when its pages are at hand anyway. Pages are given back.
class ModelFingerprint {
 public:
  explicit ModelFingerprint(const onnx::Model& model);
  /// Takes the tensors of these names in, as far as they lie in data files and were not yet taken.
  void take(const std::vector<std::string>& names);
  /// Takes all that is left.
  Fingerprint finish();

 private:
  Fingerprint sum_;
  std::map<std::string, onnx::TensorData> left_;
};
Fingerprint fingerprint_of(const onnx::Model& model);

/// Of types, shapes and values of all inputs.
Fingerprint fingerprint_of(const data::Sample& sample);

/// Sum over all samples of a source, as in calibration::Statistics.
Fingerprint fingerprint_of(data::SampleSource& source);

}  // namespace detent::run
