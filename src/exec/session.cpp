#include "exec/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/process.h"
#include "base/text.h"
#include "exec/emit.h"
#include "exec/operators.h"
#include "exec/runtime.h"

namespace detent::exec {
namespace {

GraphOptimizationLevel optimization_level(SessionMode tuning) {
  switch (tuning) {
    case SessionMode::inspect: return ORT_DISABLE_ALL;
    case SessionMode::lean: return ORT_ENABLE_BASIC;
    case SessionMode::blocked:
    case SessionMode::deployed: break;
  }
  return ORT_ENABLE_ALL;
}

Ort::SessionOptions session_options(const SessionOptions& options) {
  Ort::SessionOptions so;
  if (options.threads > 0) so.SetIntraOpNumThreads(options.threads);
  if (!options.record.empty()) so.EnableProfiling(options.record.c_str());
  if (!options.optimized_model.empty()) {
    so.SetOptimizedModelFilePath(options.optimized_model.c_str());
    so.AddConfigEntry("session.optimized_model_external_initializers_file_name",
                      (options.optimized_model.filename().string() + ".data").c_str());
  }
  if (!options.is_timed) {
    so.AddConfigEntry("session.intra_op.allow_spinning", "0");
    // Two models that run in turn would else each keep what they have taken.
    so.AddConfigEntry("session.use_env_allocators", "1");
  }
  if (options.tuning == SessionMode::deployed) return so;
  so.SetGraphOptimizationLevel(optimization_level(options.tuning));
  // The memory pattern plans one block for the largest run it has seen; prepacking copies the weights out of the mapped
  // file.
  so.DisableMemPattern();
  so.AddConfigEntry("session.disable_prepacking", "1");
  return so;
}

graph::ValueType value_type(const Ort::TypeInfo& info) {
  if (info.GetONNXType() != ONNX_TYPE_TENSOR) return {};
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  std::vector<onnx::Dim> dims;
  for (const auto d : tensor.GetShape()) dims.push_back({d < 0 ? -1 : d, ""});
  return {static_cast<onnx::DataType>(tensor.GetElementType()), std::move(dims)};
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](const auto& word) { return text.find(word) != text.npos; });
}

bool is_out_of_memory(const std::string& text) {
  return contains_any(text, {"bad_alloc", "Failed to allocate memory", "Cannot allocate memory", "SystemError : 12"});
}

Error runtime_error(const std::string& where, const Ort::Exception& e) {
  if (is_out_of_memory(e.what())) {
    return resource_error(fmt::format("{}: out of memory ({})", where, one_line(e.what())),
                          "give smaller samples or a smaller batch");
  }
  const auto text = [&] { return fmt::format("{}: ONNX Runtime: {}", where, one_line(e.what())); };
  if (contains_any(e.what(), {"Too many open files", "SystemError : 24", "SystemError : 23"}))
    return resource_error(text(), "raise the limit of open files (ulimit -n)");
  if (contains_any(e.what(), {"pthread_create failed", "Resource temporarily unavailable"}))
    return resource_error(text(), "raise the limit of processes (ulimit -u), or give fewer --threads");
  if (is_device_failure(e.what())) return device_error(text());
  if (const auto refusal = refusal_of(one_line(e.what())))
    return bad_input(fmt::format("{}: {}", where, refusal->message), refusal->hint);
  return bad_input(text());
}

Error run_is_over(const std::string& where, double seconds) {
  return resource_error(fmt::format("{}: the model takes longer than {} s for one sample", where, seconds),
                        "raise --set sample-time-limit");
}

data::Array to_array(Ort::Value&& value) {
  data::Array array;
  if (!value.IsTensor()) return array;
  const auto info = value.GetTensorTypeAndShapeInfo();
  array.type = static_cast<onnx::DataType>(info.GetElementType());
  array.shape = info.GetShape();
  if (array.type == onnx::DataType::string) return array;
  const auto bytes = onnx::byte_count(array.type, static_cast<std::int64_t>(info.GetElementCount()));
  const auto owner = std::make_shared<Ort::Value>(std::move(value));
  array.bytes = {static_cast<const std::byte*>(owner->GetTensorRawData()), bytes.value_or(0)};
  array.owner = owner;
  return array;
}

// An output that is an input stands where that stands, and lives as long: the runtime's value does not own it.
void share_owner(data::Array& output, std::span<const data::Array> inputs) {
  const auto within = [&](const data::Array& input) {
    const std::less<> less;
    const std::byte* const end = input.bytes.data() + input.bytes.size();
    return !less(output.bytes.data(), input.bytes.data()) && less(output.bytes.data(), end);
  };
  const auto found = std::find_if(inputs.begin(), inputs.end(), within);
  if (found != inputs.end()) output.owner = found->owner;
}

}  // namespace

struct Session::Impl {
  Impl(const SessionOptions& given, std::optional<double> limit)
      : options(given), run_limit(limit), tap(given.edits, given.device) {}

  const SessionOptions options;
  const std::optional<double> run_limit;
  std::shared_ptr<Runtime::Impl> runtime;
  TapOperator tap;
  Ort::CustomOpDomain domain{nullptr};
  BlockDomain block_floats;
  Ort::Session session{nullptr};
  std::vector<Port> inputs, outputs;

  std::vector<Ort::Value> run(Ort::RunOptions& run_options, const std::vector<Ort::Value>& values) {
    std::vector<const char*> input_names, output_names;
    for (const auto& port : inputs) input_names.push_back(port.name.c_str());
    for (const auto& port : outputs) output_names.push_back(port.name.c_str());
    return session.Run(run_options, input_names.data(), values.data(), values.size(), output_names.data(),
                       output_names.size());
  }

  // A plain run brings each output to the host.
  void run_for_taps(Ort::RunOptions& run_options, const std::vector<Ort::Value>& values) {
    if (options.device == nullptr) {
      run(run_options, values);
      return;
    }
    const Ort::MemoryInfo there(options.device->memory.c_str(), OrtDeviceAllocator, options.device->ordinal,
                                OrtMemTypeDefault);
    Ort::IoBinding binding(session);
    for (std::size_t i = 0; i < inputs.size(); ++i) binding.BindInput(inputs[i].name.c_str(), values[i]);
    for (const auto& port : outputs) binding.BindOutput(port.name.c_str(), there);
    binding.SynchronizeInputs();
    session.Run(run_options, binding);
  }

  /// `create` makes the session with the options that it is given.
  void open(const std::string& where, const std::function<Ort::Session(Ort::SessionOptions&)>& create) {
    try {
      auto so = session_options(options);
      domain = Ort::CustomOpDomain(kTapDomain);
      domain.Add(&tap);
      so.Add(domain);
      block_floats.add_to(so);
      if (options.device != nullptr) append_provider(so, *options.device, runtime->library);
      if (options.place != nullptr) append_provider(so, *options.place, runtime->library);
      if (!options.provider.empty()) append_provider(so, options.provider, runtime->library);
      failpoint("session.create");
      session = create_fused(so, create);
      read_ports();
    } catch (const Ort::Exception& e) {
      throw runtime_error(where, e);
    }
  }

  // Before 1.32 the runtime fuses pairs of 8-bit floats into operators on integers, and then refuses these.
  static Ort::Session create_fused(Ort::SessionOptions& so,
                                   const std::function<Ort::Session(Ort::SessionOptions&)>& create) {
    try {
      return create(so);
    } catch (const Ort::Exception& e) {
      if (!contains_any(e.what(), {"Type 'tensor(float8"})) throw;
      so.AddConfigEntry("session.disable_quant_qdq", "1");
      return create(so);
    }
  }

  void read_ports() {
    const Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i) {
      inputs.push_back({session.GetInputNameAllocated(i, allocator).get(), value_type(session.GetInputTypeInfo(i))});
    }
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
      outputs.push_back({session.GetOutputNameAllocated(i, allocator).get(), value_type(session.GetOutputTypeInfo(i))});
    }
  }
};

Session::Session(const Runtime& runtime, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(options, runtime.run_limit())) {
  impl_->runtime = runtime.impl();
}

Session::Session(const Runtime& runtime, const std::string& model, const std::string& where,
                 const SessionOptions& options)
    : Session(runtime, options) {
  impl_->open(where, [&](Ort::SessionOptions& so) {
    so.AddConfigEntry("session.model_external_initializers_file_folder_path", kExternalRoot);
    return Ort::Session(impl_->runtime->env, model.data(), model.size(), so);
  });
}

Session Session::of_file(const Runtime& runtime, const std::filesystem::path& model, const SessionOptions& options) {
  Session session(runtime, options);
  session.impl_->open(fmt::format("model '{}'", model.string()), [&](Ort::SessionOptions& so) {
    return Ort::Session(session.impl_->runtime->env, model.c_str(), so);
  });
  return session;
}

Session::Session(Session&&) noexcept = default;
Session::~Session() {
  if (!impl_) return;
  impl_->session = Ort::Session(nullptr);
  impl_->runtime->cache.trim();
}

const std::vector<Port>& Session::inputs() const { return impl_->inputs; }
const std::vector<Port>& Session::outputs() const { return impl_->outputs; }

std::vector<data::Array> Session::run(std::span<const data::Array> inputs, const std::string& where,
                                      data::TapReceiver* receiver) {
  Impl& impl = *impl_;
  const auto& stop = impl.options.stop;
  if (stop.stop_requested()) throw interrupted();
  Ort::RunOptions run_options;
  std::optional<Deadline> limit;
  if (impl.run_limit) limit.emplace(*impl.run_limit, stop, run_is_over(where, *impl.run_limit));
  const std::stop_callback terminate(limit ? limit->token() : stop, [&] { run_options.SetTerminate(); });
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  if (inputs.size() != impl.inputs.size()) {
    throw bad_input(
        fmt::format("{}: {} inputs were given, the model has {}", where, inputs.size(), impl.inputs.size()));
  }
  const TapOperator::Run tap_run(impl.tap, receiver);
  try {
    std::vector<Ort::Value> values;
    for (const auto& array : inputs) {
      // The runtime does not write to its inputs; its signature is not const.
      values.push_back(Ort::Value::CreateTensor(memory, const_cast<std::byte*>(array.bytes.data()), array.bytes.size(),
                                                array.shape.data(), array.shape.size(),
                                                static_cast<ONNXTensorElementDataType>(array.type)));
    }
    if (!impl.options.keep_results) {
      impl.run_for_taps(run_options, values);
      return {};
    }
    std::vector<data::Array> out;
    for (auto& value : impl.run(run_options, values)) share_owner(out.emplace_back(to_array(std::move(value))), inputs);
    return out;
  } catch (const Ort::Exception& e) {
    tap_run.rethrow();
    if (limit && limit->passed()) throw limit->error();
    if (stop.stop_requested()) throw interrupted();
    throw runtime_error(where, e);
  }
}

std::vector<NodeTime> Session::end_recording() { return last_of_each(end_recording_of_runs()); }

std::vector<NodeTime> Session::end_recording_of_runs() {
  const Ort::AllocatorWithDefaultOptions allocator;
  const std::filesystem::path file = impl_->session.EndProfilingAllocated(allocator).get();
  auto times = read_node_times(file);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  return times;
}

std::vector<onnx::Tensor> compute_constants(const Runtime& runtime, const onnx::Model& model,
                                            const std::vector<int>& nodes) {
  if (nodes.empty()) return {};
  const graph::Index index(model);
  const std::set<int> inside(nodes.begin(), nodes.end());
  std::vector<std::string> outputs;
  for (const int n : nodes) {
    for (const auto& name : model.graph.nodes[static_cast<std::size_t>(n)].outputs()) {
      bool read_outside = index.is_captured(name);
      for (const int reader : index.consumers(name)) read_outside = read_outside || !inside.contains(reader);
      if (read_outside) outputs.push_back(name);
    }
  }
  if (outputs.empty()) return {};
  const std::string where = fmt::format("model '{}', constants", model.path.string());
  Session session(runtime, emit(constant_part(model, nodes, outputs)), where, {SessionMode::inspect, 1, {}});
  std::vector<onnx::Tensor> tensors;
  const auto results = session.run({}, where);
  for (std::size_t i = 0; i < results.size(); ++i) {
    tensors.push_back({outputs[i],
                       results[i].type,
                       results[i].shape,
                       onnx::TensorData::owned({results[i].bytes.begin(), results[i].bytes.end()}),
                       {},
                       false});
  }
  return tensors;
}

namespace {

std::string text(const nlohmann::json& object, const char* member) {
  return object.is_object() && object.contains(member) && object[member].is_string() ? object[member].get<std::string>()
                                                                                     : std::string();
}

double number(const nlohmann::json& object, const char* member) {
  return object.contains(member) && object[member].is_number() ? object[member].get<double>() : 0;
}

}  // namespace

std::vector<NodeTime> read_node_times(const std::filesystem::path& path) {
  constexpr std::string_view kSuffix = "_kernel_time";
  constexpr double kMicrosecond = 1e-6;
  std::vector<NodeTime> times;
  std::ifstream file(path);
  // The file is one JSON array with an event a line: read so, it is never in memory as a whole.
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.pop_back();
    const auto event = parse_json(line);
    if (!event || text(*event, "cat") != "Node") continue;
    std::string name = text(*event, "name");
    if (!name.ends_with(kSuffix)) continue;
    name.resize(name.size() - kSuffix.size());
    const auto args = event->value("args", nlohmann::json::object());
    times.push_back({std::move(name), text(args, "op_name"), kMicrosecond * number(*event, "ts"),
                     kMicrosecond * number(*event, "dur"), text(args, "provider")});
  }
  return times;
}

std::vector<NodeTime> last_of_each(std::vector<NodeTime> times) {
  std::vector<NodeTime> last;
  std::unordered_map<std::string, std::size_t> position;
  for (auto& time : times) {
    const auto [it, added] = position.try_emplace(time.name, last.size());
    if (added) {
      last.push_back(std::move(time));
    } else {
      last[it->second] = std::move(time);
    }
  }
  return last;
}

namespace {

// What stands between two words; empty where they are not there.
std::string_view between(std::string_view text, std::string_view before, std::string_view after) {
  const auto begin = text.find(before);
  if (begin == text.npos) return {};
  text.remove_prefix(begin + before.size());
  const auto end = text.find(after);
  return end == text.npos ? std::string_view() : text.substr(0, end);
}

constexpr std::string_view kKnowsUpTo = "this ONNX Runtime knows opsets up to ",
                           kHasNo = "this ONNX Runtime has no operator ";

}  // namespace

std::string one_line(const std::string& text) {
  static const Pattern kNoise(R"((/[^\s:]*\.(cc|h|cpp):\d+\s+[^\n]*?\)\s?)|[\r\n]+)");
  std::string line = kNoise.replace_all(text, " ");
  constexpr std::size_t kLongest = 400;
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "…";
  return line;
}

std::optional<Refusal> refusal_of(const std::string& text) {
  if (const auto version = between(text, "Unsupported model IR version: ", ","); !version.empty()) {
    const auto last = text.find_last_of("0123456789");
    const auto first = text.find_last_not_of("0123456789", last);
    return Refusal{fmt::format("it has IR version {}, and this ONNX Runtime knows versions up to {}", version,
                               text.substr(first + 1, last - first)),
                   "use a newer ONNX Runtime, or save the model with an older IR version"};
  }
  const auto opset = between(text, "Opset ", " is under development");
  const auto known = between(text, " is till opset ", ".");
  if (!opset.empty() && !known.empty())
    return Refusal{fmt::format("it has opset {} of {}, and {}{}", opset,
                               between(text, "support for domain ", " is till"), kKnowsUpTo, known),
                   "use a newer ONNX Runtime, or convert the model to an older opset"};
  constexpr std::string_view kFatal = "Fatal error: ";
  if (const auto name = between(text, kFatal, " is not a registered function/op"); !name.empty())
    return Refusal{fmt::format("{}{}", kHasNo, name.substr(0, name.rfind('('))),
                   "use an ONNX Runtime that has it, or a model without it"};
  if (const auto name = between(text, "No Op registered for ", " with domain_version"); !name.empty())
    return Refusal{fmt::format("{}{}", kHasNo, name), "use an ONNX Runtime that has it, or a model without it"};
  if (text.find("Subgraph must have the shape set for all outputs") != text.npos)
    return Refusal{fmt::format("what the body of Scan '{}' gives has shapes that are not known where values in it are "
                               "observed",
                               between(text, "Name:'", "'")),
                   "state the shapes of the body's outputs in the model, or give no samples"};
  const auto node = between(text, "Could not find an implementation for ", ")");
  if (const auto paren = node.find('('); paren != node.npos)
    return Refusal{fmt::format("this ONNX Runtime has no kernel of {} of opset {} for the types of node '{}'",
                               node.substr(0, paren), node.substr(paren + 1), between(text, "with name '", "'")),
                   "use an ONNX Runtime that has it, or change the types in the model"};
  return std::nullopt;
}

std::optional<std::int64_t> known_opset(const std::string& text) {
  const auto at = text.find(kKnowsUpTo);
  std::int64_t opset = 0;
  if (at == text.npos) return std::nullopt;
  const char* const begin = text.data() + at + kKnowsUpTo.size();
  const bool is_number = std::from_chars(begin, text.data() + text.size(), opset).ec == std::errc();
  return is_number ? std::optional(opset) : std::nullopt;
}

std::string unknown_operator(const std::string& text) {
  const auto at = text.find(kHasNo);
  return at == text.npos ? std::string() : text.substr(at + kHasNo.size());
}

void give_back_unused(const Runtime& runtime) noexcept { runtime.impl()->cache.trim(); }

}  // namespace detent::exec
