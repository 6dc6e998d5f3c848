// Who runs a quantized model where it is deployed: ONNX Runtime with one of its execution providers, or what the caller
// brings along.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/sample.h"
#include "data/tap.h"
#include "detent/verify.h"
#include "exec/session.h"
#include "run/comparison/latency.h"

namespace detent::pipeline {

class LoadedModel {
 public:
  virtual ~LoadedModel() = default;
  virtual std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where) = 0;
};

class Deployment {
 public:
  virtual ~Deployment() = default;
  virtual std::string name() const = 0;
  virtual std::unique_ptr<LoadedModel> load(const std::filesystem::path& model) = 0;
  virtual std::unique_ptr<LoadedModel> load(const onnx::Model& model) = 0;
  /// A model whose runs hand what is tapped to a receiver, which may change it; null where the consumer cannot.
  virtual std::unique_ptr<LoadedModel> load_tapped(const onnx::Model& model, const std::vector<std::string>& taps,
                                                   data::TapReceiver& receiver) = 0;
  /// A model's file, and samples of the types that it reads.
  struct Timed {
    std::filesystem::path file;
    std::span<const std::vector<data::Array>> samples;
  };
  /// Of both models in turns, for about so many seconds.
  virtual std::vector<Latency> time(const std::array<Timed, 2>& both, double seconds) = 0;
};

/// As the options say. Throws device where the runtime does not have what they ask for.
std::unique_ptr<Deployment> deployment_of(const VerifyOptions& options, const exec::Runtime& runtime);

}  // namespace detent::pipeline
