// Who runs a quantized model where it is deployed: ONNX Runtime with one of its execution providers, or what the caller
// brings along.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checking/diagnosis.h"
#include "checking/reference.h"
#include "config/targets.h"
#include "config/validate.h"
#include "data/sample.h"
#include "detent/verify.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "exec/timing.h"
#include "graph/decisions.h"
#include "graph/rewrites/rewrite.h"
#include "graph/segment.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"
#include "run/comparison/pairing.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/model/finish.h"
#include "run/model/target_runtime.h"
#include "run/samples/samples.h"

namespace detent {
namespace {

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
        load_seconds_(run::seconds_to_load(options.resources.time_limit)) {
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
  const auto& target = config::target(options.config);
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

// As the options say. Throws device where the runtime does not have what they ask for.
std::unique_ptr<Deployment> deployment_of(const VerifyOptions& options, const exec::Runtime& runtime) {
  if (options.consumer != nullptr) return std::make_unique<OfCaller>(*options.consumer);
  return std::make_unique<OnnxRuntime>(options, runtime, provider_of(options));
}

constexpr std::size_t kSamples = 16;
constexpr double kTimed = 2;  // seconds of both models

using Held = std::map<std::string, std::vector<data::Array>>;    // the same, of what a float model's run decided
using Values = std::map<std::string, std::vector<data::Array>>;  // of all samples

onnx::Model read(const std::filesystem::path& path, const VerifyOptions& options) {
  auto model = onnx::read_model(run::model_file(path));
  graph::require_room(model, options.resources.memory_budget);
  graph::lift_constants(model);
  graph::drop_initializer_inputs(model);
  graph::sort_topologically(model);
  return model;
}

std::vector<std::string> names_of(const std::vector<onnx::ValueInfo>& infos) {
  std::vector<std::string> names;
  for (const auto& info : infos) names.push_back(info.name);
  return names;
}

// Each group of the quantized model: exactly, and as the consumer runs it on the same inputs.
class Layers {
 public:
  Layers(const onnx::Model& model, const VerifyOptions& options, const exec::Runtime& runtime, Deployment& deployment,
         const Held& held, Verification& result)
      : model_(model),
        options_(options),
        runtime_(runtime),
        deployment_(deployment),
        held_(held),
        result_(result),
        index_(model),
        types_(exec::infer_value_types(exec::guarded_ports(runtime, {.stop = options.stop}), model)),
        models_(model, index_, types_) {}

  /// The model's outputs, computed exactly. `values` are the inputs.
  Values run(Values values, std::size_t samples) {
    graph::add_initializers(model_, types_);
    const auto groups = checking::groups_of(model_, index_);
    std::map<std::string, std::size_t> last_read;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const auto& name : groups[g].inputs) last_read[name] = g;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (options_.progress) options_.progress("Layers", g, groups.size());
      add(groups[g], values, samples);
      for (const auto& name : groups[g].inputs) {
        if (last_read[name] == g && !index_.is_output(name)) values.erase(name);
      }
    }
    std::stable_sort(result_.layers.begin(), result_.layers.end(), [](const auto& a, const auto& b) {
      return std::tie(a.max_steps, a.share_over_one, a.share) > std::tie(b.max_steps, b.share_over_one, b.share);
    });
    if (!result_.layers.empty()) result_.max_steps = result_.layers.front().max_steps;
    note_float_operators();
    return values;
  }

 private:
  static std::vector<data::Array> inputs_of(const checking::Group& group, const Values& values, std::size_t sample) {
    std::vector<data::Array> inputs;
    for (const auto& name : group.inputs) inputs.push_back(values.at(name)[sample]);
    return inputs;
  }

  // Of shapes that the model states wrongly, ranks are left.
  void correct_shapes(const checking::Group& group, const Values& values) {
    for (const auto& name : group.inputs) {
      auto& shape = types_[name].shape;
      const auto& all = values.at(name);
      if (std::any_of(all.begin(), all.end(), [&](const auto& v) { return graph::contradicts(v.shape, shape); }))
        shape = std::vector<onnx::Dim>(all.front().shape.size());
    }
  }

  void add(const checking::Group& group, Values& values, std::size_t samples) {
    correct_shapes(group, values);
    const auto model = models_.model(group);
    const auto& last = model_.graph.nodes[static_cast<std::size_t>(group.last)];
    const auto reference = checking::reference_of(model, types_);
    if (!reference.exact) in_float_.insert(reference.inexact_op);
    {
      exec::Session session(runtime_, exec::emit(reference.model), last.label(),
                            {exec::SessionMode::inspect, options_.threads, options_.stop});
      for (std::size_t s = 0; s < samples; ++s) {
        auto made = session.run(inputs_of(group, values, s), last.label());
        for (std::size_t o = 0; o < made.size(); ++o)
          values[group.outputs[o]].push_back(as_held(group.outputs[o], s, std::move(made[o])));
      }
    }
    if (draws_numbers(group)) return;  // no two runs give the same
    const auto is_comparable = [&](const auto& name) {
      return checking::is_comparable(graph::type_of(model_, types_, name));
    };
    if (std::any_of(group.outputs.begin(), group.outputs.end(), is_comparable))
      compare(group, model, reference.exact, values, samples);
  }

  // What the float model's run decided, where it is of the same size.
  data::Array as_held(const std::string& name, std::size_t sample, data::Array made) const {
    const auto found = held_.find(name);
    if (found == held_.end()) return made;
    auto held = data::as_floats(found->second[sample], made.type);
    return held.type == made.type && held.shape == made.shape ? held : made;
  }

  bool draws_numbers(const checking::Group& group) const {
    return std::any_of(group.nodes.begin(), group.nodes.end(), [&](int n) {
      return graph::draws_numbers(model_, index_, model_.graph.nodes[static_cast<std::size_t>(n)]);
    });
  }

  void compare(const checking::Group& group, const onnx::Model& model, bool exact, const Values& values,
               std::size_t samples) {
    const auto& last = model_.graph.nodes[static_cast<std::size_t>(group.last)];
    const auto deployed = load(model, last);
    if (!deployed) return;
    std::vector<checking::Differences> all(group.outputs.size());
    std::vector<double> steps;
    for (const auto& name : group.outputs) steps.push_back(step_of(name, values));
    for (std::size_t s = 0; s < samples; ++s) {
      const auto made = deployed->run(inputs_of(group, values, s), last.label());
      if (made.size() != group.outputs.size()) throw internal_error("a consumer that loses outputs");
      for (std::size_t o = 0; o < made.size(); ++o) {
        const auto& name = group.outputs[o];
        const auto& expected = values.at(name)[s];
        if (made[o].shape != expected.shape)  // values that differ by less than a step decide how many there are
          result_.notes.push_back(
              fmt::format("'{}' has another size where the model is deployed, by sample {}", name, s + 1));
        else if (checking::is_comparable(expected.type))
          all[o].add(expected, made[o], steps[o], name);
      }
    }
    const auto& target = config::target(result_.target);
    for (std::size_t o = 0; o < all.size(); ++o) {
      if (all[o].elements == 0) continue;
      result_.layers.push_back({.name = group.outputs[o],
                                .made_by = maker_of(group),
                                .quantized = checking::is_quantized(graph::type_of(model_, types_, group.outputs[o])),
                                .elements = all[o].elements,
                                .max_steps = all[o].max_steps,
                                .share = all[o].share(),
                                .share_over_one = all[o].share_over_one(),
                                .exact = exact,
                                .reason = checking::cause_of(model_, index_, group, all[o], target)});
    }
  }

  // What runs as a part of the model may be refused as a model of its own.
  std::unique_ptr<LoadedModel> load(const onnx::Model& model, const onnx::Node& last) {
    try {
      return deployment_.load(model);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input) throw;
      result_.notes.push_back(fmt::format("{} was not compared on its own: {}", last.label(), e.what()));
      return nullptr;
    }
  }

  double step_of(const std::string& name, const Values& values) const {
    if (!data::holds_floats(graph::type_of(model_, types_, name))) return 1;
    double most = 0;
    for (const auto& array : values.at(name)) most = std::max(most, checking::magnitude_of(array));
    return most > 0 ? most / 255 : std::numeric_limits<double>::min();
  }

  // The product of a group, or the last node that computes.
  std::string maker_of(const checking::Group& group) const {
    std::string name;
    for (const int n : group.nodes) {
      const auto& node = model_.graph.nodes[static_cast<std::size_t>(n)];
      if (graph::is_q_or_dq(node)) continue;
      if (index_.initializer(node.outputs()[0]) == graph::kNone) name = node.label();
      if (graph::is_product(node)) break;
    }
    return name.empty() ? model_.graph.nodes[static_cast<std::size_t>(group.last)].label() : name;
  }

  void note_float_operators() {
    if (in_float_.empty()) return;
    result_.notes.push_back(fmt::format(
        "there is no float64 kernel for {}: their reference is ONNX Runtime's float32 without optimizations",
        fmt::join(in_float_, ", ")));
  }

  const onnx::Model& model_;
  const VerifyOptions& options_;
  const exec::Runtime& runtime_;
  Deployment& deployment_;
  const Held& held_;
  Verification& result_;
  graph::Index index_;
  graph::ValueTypes types_;
  checking::GroupModels models_;
  std::set<std::string> in_float_;
};

class Verifying {
 public:
  explicit Verifying(const Options& options)
      : options_(options),
        runtime_(options.runtime),
        deployment_(deployment_of(options, runtime_)),
        float_file_(run::model_file(options.model)),
        quantized_file_(run::model_file(options.quantized_model)),
        float_model_(read(options.model, options)),
        model_(read(options.quantized_model, options)),
        decisions_(runtime_, float_model_, model_) {
    result_.target = options.config.target;
    if (!options.notes.empty()) result_.target_reason = options.notes.front();
    result_.consumer = deployment_->name();
  }

  Verification run() {
    read_samples();
    Values inputs;
    for (std::size_t i = 0; i < model_.graph.inputs.size(); ++i) {
      auto& all = inputs[model_.graph.inputs[i].name];
      for (const auto& sample : quantized_samples_) all.push_back(sample[i]);
    }
    run_in_float();
    const auto outputs = Layers(model_, options_, runtime_, *deployment_, held_, result_).run(inputs, samples_.size());
    compare_outputs(outputs);
    if (options_.bench)
      result_.latency = deployment_->time({{{float_file_, samples_}, {quantized_file_, quantized_samples_}}}, kTimed);
    return std::move(result_);
  }

 private:
  void read_samples() {
    output_names_ = names_of(float_model_.graph.outputs);
    if (names_of(float_model_.graph.inputs) != names_of(model_.graph.inputs) ||
        output_names_ != names_of(model_.graph.outputs))
      throw bad_input("the models differ in the names of their inputs or outputs",
                      "verify a model with its own quantized form");
    const auto most = options_.max_samples == 0 ? kSamples : options_.max_samples;
    const auto specs = run::input_specs(model_);
    const auto source = run::open_first(options_, with_float_cache(float_model_, specs), most);
    samples_ = run::first_samples(*source, most);
    if (samples_.empty()) throw bad_input("there are no samples");
    for (const auto& sample : samples_) quantized_samples_.push_back(run::with_cache_of(sample, specs));
    result_.samples = samples_.size();
  }

  // Inputs of the quantized model, but of a cache in integers the float model's.
  static std::vector<data::InputSpec> with_float_cache(const onnx::Model& original,
                                                       std::vector<data::InputSpec> specs) {
    const auto in_float = run::input_specs(original);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].type != in_float[i].type && !data::holds_floats(specs[i].type)) specs[i] = in_float[i];
    }
    return specs;
  }

  // As deployed, and what it decides.
  void run_in_float() {
    exec::SessionOptions options{exec::SessionMode::deployed, options_.threads, options_.stop};
    const auto& taps = decisions_.taps();
    auto session = taps.empty() ? exec::Session::of_file(runtime_, float_file_, options)
                                : exec::Session(runtime_, exec::emit(float_model_, {taps, {}, {}}),
                                                fmt::format("model '{}'", float_file_.string()), options);
    run::DecisionRecorder recorder(decisions_);
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      in_float_.push_back(session.run(samples_[s], fmt::format("sample {}", s + 1), &recorder));
      recorded_.push_back(decisions_.recorded());
      for (std::size_t tap = 0; tap < taps.size(); ++tap) held_[taps[tap]].push_back(recorded_.back()[tap]);
    }
    for (const auto& note : decisions_.notes()) result_.notes.push_back(note);
  }

  std::unique_ptr<LoadedModel> load_whole(run::DecisionPlayer& player) const {
    if (decisions_.taps().empty()) return deployment_->load(quantized_file_);
    return deployment_->load_tapped(model_, decisions_.taps(), player);
  }

  void compare_outputs(const Values& exact) {
    run::DecisionPlayer player(decisions_);
    const auto deployed = load_whole(player);
    if (!deployed) {
      result_.notes.emplace_back(
          "the outputs were not compared: this consumer cannot take the float model's decisions");
      return;
    }
    struct Sums {
      run::PairSums reference, deployed, both;
      bool any = false;
    };
    std::vector<Sums> sums(output_names_.size());
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      const auto where = fmt::format("sample {}", s + 1);
      decisions_.recall(recorded_[s]);
      const auto& x = in_float_[s];
      const auto z = deployed->run(quantized_samples_[s], where);
      for (std::size_t o = 0; o < output_names_.size(); ++o) {
        const auto& name = output_names_[o];
        const auto found = exact.find(name);
        if (found == exact.end() || !data::holds_floats(x[o].type) || !data::holds_floats(z[o].type)) continue;
        const auto& y = found->second[s];
        sums[o].any = true;
        sums[o].reference.add(x[o], y);
        sums[o].deployed.add(x[o], z[o]);
        sums[o].both.add(y, z[o]);
      }
    }
    const auto fidelity = [](const std::string& name, const run::PairSums& of) {
      return Fidelity{name, "", of.sqnr_db(), of.cosine(), of.max_abs};
    };
    for (std::size_t o = 0; o < sums.size(); ++o) {
      const auto& [reference, deployed_sums, both, any] = sums[o];
      if (any && reference.has_ratio() && deployed_sums.has_ratio())
        result_.outputs.push_back(
            {fidelity(output_names_[o], reference), fidelity(output_names_[o], deployed_sums), both.sqnr_db()});
      else if (any)
        result_.notes.push_back(fmt::format("output '{}' has no values to compare, or 0 alone", output_names_[o]));
    }
  }

  const VerifyOptions& options_;
  Verification result_;
  exec::Runtime runtime_;
  std::unique_ptr<Deployment> deployment_;
  std::filesystem::path float_file_, quantized_file_;
  onnx::Model float_model_, model_;
  run::SharedDecisions decisions_;
  std::vector<std::string> output_names_;
  std::vector<std::vector<data::Array>> in_float_, recorded_;  // results, and decisions by tap, of each sample
  Held held_;
  std::vector<std::vector<data::Array>> samples_, quantized_samples_;  // as each model reads them
};

Verification verify_within_time(const VerifyOptions& options) {
  config::validate(options, config::kVerify);
  if (const auto named = run::with_named_target(options)) return Verifying(*named).run();
  (void)config::target(options.config);
  return Verifying(options).run();
}

}  // namespace

Verification verify(const VerifyOptions& options) { return run::within_time(options, verify_within_time); }

}  // namespace detent
