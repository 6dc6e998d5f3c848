#include "pipeline/consumers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/error.h"
#include "config/targets.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "exec/interleaved_timing.h"
#include "exec/providers.h"
#include "onnx/write.h"
#include "run/deadline.h"
#include "run/model/automatic_target.h"
#include "run/samples/samples.h"

namespace detent::pipeline {
namespace {

constexpr const char* kCpu = "CPUExecutionProvider";

class InRuntime final : public LoadedModel {
 public:
  explicit InRuntime(exec::Session session, data::TapReceiver* receiver = nullptr)
      : session_(std::move(session)), receiver_(receiver) {}
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string& where) override {
    return session_.run(inputs, where, receiver_);
  }

 private:
  exec::Session session_;
  data::TapReceiver* receiver_;
};

class OnnxRuntime final : public Deployment {
 public:
  OnnxRuntime(const VerifyOptions& options, const exec::Runtime& runtime, std::string provider)
      : runtime_(runtime),
        provider_(std::move(provider)),
        options_{exec::SessionMode::deployed, options.threads, options.stop},
        load_seconds_(run::seconds_to_load(options.limits.time_limit)) {
    if (provider_ != kCpu) options_.provider = provider_;
  }

  std::string name() const override { return fmt::format("ONNX Runtime {}, {}", runtime_.version(), provider_); }
  std::unique_ptr<LoadedModel> load(const std::filesystem::path& model) override {
    exec::check_survives(runtime_, model,
                         {.threads = options_.threads, .load_seconds = load_seconds_, .stop = options_.stop});
    return std::make_unique<InRuntime>(exec::Session::of_file(runtime_, model, options_));
  }
  std::unique_ptr<LoadedModel> load(const onnx::Model& model) override {
    const auto where = fmt::format("model '{}', a part of it", model.path.string());
    return std::make_unique<InRuntime>(exec::Session(runtime_, exec::emit(model), where, options_));
  }
  std::unique_ptr<LoadedModel> load_tapped(const onnx::Model& model, const std::vector<std::string>& taps,
                                           data::TapReceiver& receiver) override {
    auto options = options_;
    options.edits = true;
    const auto where = fmt::format("model '{}'", model.path.string());
    return std::make_unique<InRuntime>(exec::Session(runtime_, exec::emit(model, {taps, {}, {}}), where, options),
                                       &receiver);
  }
  std::vector<Latency> time(const std::array<Timed, 2>& both, double seconds) override {
    auto options = options_;
    options.is_timed = true;
    const auto opener = [&](const Timed& model) {
      return [&, file = model.file] { return exec::Session::of_file(runtime_, file, options); };
    };
    const std::array<exec::Timed, 2> models{{{opener(both[0]), "the float model", both[0].samples},
                                             {opener(both[1]), "the quantized model", both[1].samples}}};
    return run::latencies(exec::time_interleaved(models, {.seconds = seconds}));
  }

 private:
  const exec::Runtime& runtime_;
  std::string provider_;
  exec::SessionOptions options_;
  double load_seconds_;
};

ElementType public_type(onnx::DataType type) { return static_cast<ElementType>(type); }

class Brought final : public LoadedModel {
 public:
  Brought(Consumer::Run run, std::vector<data::InputSpec> inputs) : run_(std::move(run)), inputs_(std::move(inputs)) {}
  std::vector<data::Array> run(std::span<const data::Array> inputs, const std::string&) override {
    std::vector<NamedArray> given;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      given.push_back(
          {inputs_[i].name, public_type(inputs[i].type), inputs[i].shape, inputs[i].bytes, inputs[i].owner});
    std::vector<data::Array> made;
    for (auto& array : run_(given))
      made.push_back({static_cast<onnx::DataType>(array.type), array.shape, array.bytes, array.owner});
    return made;
  }

 private:
  Consumer::Run run_;
  std::vector<data::InputSpec> inputs_;
};

class OfCaller final : public Deployment {
 public:
  explicit OfCaller(Consumer& consumer) : consumer_(consumer) {}

  std::string name() const override { return consumer_.name(); }
  std::unique_ptr<LoadedModel> load(const std::filesystem::path& model) override {
    return loaded(model, onnx::read_model(model));
  }
  std::unique_ptr<LoadedModel> load(const onnx::Model& model) override {
    const auto file = folder_.path() / "part.onnx";
    onnx::write_model(model, file);
    return loaded(file, model);
  }
  std::unique_ptr<LoadedModel> load_tapped(const onnx::Model&, const std::vector<std::string>&,
                                           data::TapReceiver&) override {
    return nullptr;
  }
  std::vector<Latency> time(const std::array<Timed, 2>& both, double seconds) override {
    using Clock = std::chrono::steady_clock;
    const std::array<std::unique_ptr<LoadedModel>, 2> models{load(both[0].file), load(both[1].file)};
    std::vector<run::Turns> turns(models.size());
    for (std::size_t m = 0; m < models.size(); ++m) models[m]->run(both[m].samples.front(), "");  // warms it up
    const auto start = Clock::now();
    for (std::size_t turn = 0; turn < 3 || Clock::now() - start < std::chrono::duration<double>(seconds); ++turn) {
      for (std::size_t m = 0; m < models.size(); ++m) {
        const auto begin = Clock::now();
        models[m]->run(both[m].samples[turn % both[m].samples.size()], "");
        const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
        turns[m].push_back({exec::RunTime{wall, 0, wall}});
      }
    }
    return run::latencies(turns);
  }

 private:
  std::unique_ptr<LoadedModel> loaded(const std::filesystem::path& file, const onnx::Model& model) {
    auto run = consumer_.load(file);
    if (!run) throw bad_input(fmt::format("{} does not take the model", name()));
    return std::make_unique<Brought>(std::move(run), run::input_specs(model));
  }

  Consumer& consumer_;
  TempDir folder_;
};

// The provider that runs what a target is.
std::string provider_of(const VerifyOptions& options) {
  if (!options.provider.empty()) return options.provider;
  const auto& target = config::target(options.target);
  if (target.is_ort_cpu) return kCpu;
  const auto stem = [](std::string_view name) { return name.substr(0, name.find(':')); };
  const auto available = exec::available_providers(options.runtime);
  for (const auto& [provider, name] : run::targets_of_providers()) {
    if (stem(name) != stem(target.name)) continue;
    const auto& names = available.names;
    if (std::find(names.begin(), names.end(), provider) != names.end()) return std::string(provider);
  }
  const std::string_view package = target.name == "openvino"    ? "openvino"
                                   : stem(target.name) == "qnn" ? "onnxruntime-qnn"
                                                                : "";
  throw device_error(
      fmt::format("nothing here runs models as {} does: {} has {}", target.name, available.runtime,
                  fmt::join(available.names, ", ")),
      fmt::format("give --runtime of an ONNX Runtime that has its provider{}; --target ort-cpu runs the model here",
                  package.empty()
                      ? ""
                      : fmt::format(", or call detent.verify() in Python where the package {} is installed", package)));
}

}  // namespace

std::unique_ptr<Deployment> deployment_of(const VerifyOptions& options, const exec::Runtime& runtime) {
  if (options.consumer != nullptr) return std::make_unique<OfCaller>(*options.consumer);
  return std::make_unique<OnnxRuntime>(options, runtime, provider_of(options));
}

}  // namespace detent::pipeline
