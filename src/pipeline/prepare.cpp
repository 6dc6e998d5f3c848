#include "pipeline/prepare.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "accuracy/integer_chains.h"
#include "base/error.h"
#include "base/file.h"
#include "graph/bodies.h"
#include "graph/index.h"
#include "quantize/selection.h"

namespace detent::pipeline {
namespace fs = std::filesystem;
namespace {

void append(std::vector<std::string>& all, graph::Notes more) {
  for (auto& line : more) all.push_back(std::move(line));
}

void note_carried_parts(const onnx::Model& model, std::vector<std::string>& notes) {
  for (const auto& node : model.graph.nodes) {
    for (const auto& a : node.attributes()) {
      if (!graph::is_body(a)) continue;
      notes.push_back(fmt::format("{}: its body '{}' is carried through in float", node.label(), a.name()));
    }
  }
  for (const auto& name : model.functions)
    notes.push_back(fmt::format("model-local function {} is carried through in float", name));
}

// The directory entry that writing `path` replaces, spelled in one way. The last part is not followed: links are
// replaced.
fs::path entry_of(const fs::path& path) {
  return fs::weakly_canonical(fs::absolute(path).parent_path()) / path.filename();
}

bool is_sample(const fs::path& entry, const fs::path& samples) {
  static const std::set<fs::path> kExtensions{".npy", ".npz", ".pb"};
  if (!fs::exists(entry) || !kExtensions.contains(entry.extension())) return false;
  const fs::path root = entry_of(samples);
  const fs::path target = fs::weakly_canonical(samples);
  return entry == root || std::mismatch(target.begin(), target.end(), entry.begin(), entry.end()).first == target.end();
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

}  // namespace

// Files are as cheap to hold as the model's own weights: mapped, not resident.
graph::Store file_store(const fs::path& directory, std::string name) {
  return [directory, name = std::move(name), count = 0](std::vector<std::byte> bytes) mutable {
    constexpr std::size_t kKeepInMemory = 4096;
    if (bytes.size() <= kKeepInMemory) return onnx::TensorData::owned(std::move(bytes));
    const fs::path path = directory / fmt::format("{}-{}.bin", name, count++);
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid())
      throw resource_error(fmt::format("cannot create '{}': {}", path.string(), errno_text(errno)),
                           "choose another --work-dir");
    write_all(fd.get(), bytes, path);
    const auto file = MappedFile::open(path, "working file");
    return onnx::TensorData::mapped(file, file->bytes());
  };
}

Prepared prepare(onnx::Model original, std::int64_t needed_opset, const exec::Runtime& runtime,
                 const fs::path& work_dir, profile::Profiler& profiler) {
  Prepared prepared{std::move(original), {}, {}};
  auto& [model, types, notes] = prepared;
  note_carried_parts(model, notes);
  append(notes, graph::lift_constants(model));
  append(notes, graph::drop_initializer_inputs(model));
  graph::sort_topologically(model);
  {
    const auto scope = profiler.scope(profile::Step::float_model_validation);
    types = exec::probe_values(runtime, model);
  }
  const bool upgrade = model.opset() < needed_opset;
  if (upgrade) append(notes, graph::upgrade_opset(model, types));
  append(notes, graph::remove_identities(model));
  const auto constants = graph::constant_nodes(model, types);
  append(notes, graph::replace_by_constants(model, constants, exec::compute_constants(runtime, model, constants)));
  append(notes, graph::fold_batch_norm(model, file_store(work_dir, "weight")));
  graph::drop_unused_initializers(model);

  if (upgrade || !constants.empty()) types = exec::probe_values(runtime, model);
  return prepared;
}

quantization::Placement place(const Prepared& prepared, const QuantConfig& config, const Fallbacks& fallbacks) {
  const auto& model = prepared.model;
  if (config.preset == Preset::plain) return quantization::place(model, prepared.types, config);
  auto selected = quantization::select_nodes(model, config);
  const bool in_float = fallbacks.to == AccuracyFallback::float32;
  for (const auto node : fallbacks.nodes) selected[node] = !in_float;
  quantization::FloatParts parts;
  if (config.op_types.empty() && config.nodes.empty()) {
    parts = accuracy::integer_chains(model, graph::Index(model), selected);
  } else {
    selected.flip();
    parts.nodes = std::move(selected);
  }
  parts.bypass = true;
  parts.may_be_all = in_float && !fallbacks.nodes.empty();
  if (!in_float) {
    parts.wide_nodes.resize(model.graph.nodes.size());
    for (const auto node : fallbacks.nodes) parts.wide_nodes[node] = true;
  }
  return quantization::place(model, prepared.types, config, parts);
}

std::vector<data::InputSpec> input_specs(const onnx::Model& model) {
  const graph::Index index(model);
  std::vector<data::InputSpec> specs;
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) != graph::kNone) continue;
    if (input.type == onnx::DataType::undefined || input.type == onnx::DataType::string) {
      throw bad_input(fmt::format("model '{}': input '{}' is not a numeric tensor", model.path.string(), input.name),
                      "detent calibrates models whose inputs are numeric tensors");
    }
    data::InputSpec spec{input.name, input.type, std::nullopt};
    if (input.shape) {
      spec.shape.emplace();
      for (const auto& dim : *input.shape) spec.shape->push_back(dim.value);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

std::unique_ptr<data::SampleSource> open_samples(const fs::path& path, SampleStream* stream,
                                                 std::vector<data::InputSpec> inputs,
                                                 const data::SourceOptions& options) {
  if (path.empty() == (stream == nullptr))
    throw usage_error(stream == nullptr ? "there is no calibration data" : "samples are given twice",
                      "give a path or a stream of samples");
  return stream != nullptr ? data::open_samples(*stream, std::move(inputs), options)
                           : data::open_samples(path, std::move(inputs), options);
}

void check_output(const fs::path& output, const onnx::Model& model) {
  const fs::path parent = output.has_parent_path() ? output.parent_path() : fs::path(".");
  if (output.filename().empty() || fs::is_directory(output)) {
    throw usage_error(fmt::format("output '{}' is a directory", output.string()), "give the name of a file");
  }
  if (!fs::is_directory(parent))
    throw usage_error(fmt::format("output directory '{}' does not exist", parent.string()), "create it first");
  if (::access(parent.c_str(), W_OK) != 0) {
    throw usage_error(fmt::format("cannot write to output directory '{}': {}", parent.string(), errno_text(errno)),
                      "choose another --output");
  }
  const fs::path data_file = output.string() + ".data";
  std::vector<fs::path> sources{model.path};
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) sources.push_back(tensor.data.file()->path());
  }
  for (const auto& source : sources) {
    if (is_same_file(output, source) || is_same_file(data_file, source)) {
      throw usage_error(fmt::format("output '{}' would overwrite '{}', which the model is read from", output.string(),
                                    source.string()),
                        "choose another --output");
    }
  }
}

void check_apart(const std::vector<fs::path>& written, const std::optional<fs::path>& samples,
                 const std::optional<fs::path>& read) {
  std::set<fs::path> entries;
  for (const auto& path : written) {
    const fs::path entry = entry_of(path);
    if (!entries.insert(entry).second)
      throw usage_error(fmt::format("'{}' would be written twice", path.string()),
                        "give each output a name of its own");
    if (read && is_same_file(path, *read))
      throw usage_error(fmt::format("output '{}' would overwrite '{}', which is read", path.string(), read->string()),
                        "choose another --output");
    if (samples && is_sample(entry, *samples)) {
      throw usage_error(fmt::format("output '{}' would overwrite a calibration sample", path.string()),
                        "choose another --output");
    }
  }
}

}  // namespace detent::pipeline
