// What tells one model or one sample from another.
#pragma once

#include "base/fingerprint.h"
#include "data/sample.h"
#include "onnx/model.h"

namespace detent::pipeline {

/// Of the model's file and of all data files that it refers to. Reads them once; pages are given back.
Fingerprint fingerprint_of(const onnx::Model& model);

/// Of types, shapes and values of all inputs.
Fingerprint fingerprint_of(const data::Sample& sample);

/// Sum over all samples of a source, as in calibration::Statistics.
Fingerprint fingerprint_of(data::SampleSource& source);

}  // namespace detent::pipeline
