// Fingerprints of models and samples.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "data/sample.h"
#include "onnx/model.h"

namespace detent::run {

/// Of the model's file and of all tensors in its data files: a sum over the parts, so that each part can be added while
/// its pages are in memory anyway. Pages are released afterwards.
class ModelFingerprint {
 public:
  explicit ModelFingerprint(const onnx::Model& model);
  /// Adds the tensors of these names that are in data files and have not been added yet.
  void take(const std::vector<std::string>& names);
  /// Adds all other tensors.
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
