#include "run/files/outputs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "onnx/write.h"
#include "run/model/finish.h"
#include "run/model/target_runtime.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

// The directory entry that writing `path` replaces, spelled in one way. The last part is not followed: links are
// replaced.
fs::path entry_of(const fs::path& path) {
  std::error_code failed;
  const auto parent = fs::weakly_canonical(fs::absolute(path, failed).parent_path(), failed);
  return (failed ? path.parent_path() : parent) / path.filename();
}

bool is_sample(const fs::path& entry, const fs::path& samples) {
  static const std::set<fs::path> kExtensions{".npy", ".npz", ".pb"};
  std::error_code failed;
  if (!fs::exists(entry, failed) || !kExtensions.contains(entry.extension())) return false;
  const fs::path root = entry_of(samples);
  const fs::path target = fs::weakly_canonical(samples, failed);
  if (failed) return false;  // opening them tells more
  return entry == root || std::mismatch(target.begin(), target.end(), entry.begin(), entry.end()).first == target.end();
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

}  // namespace

void check_place(const fs::path& output) {
  if (output.empty()) throw usage_error("the name of an output is empty", "give the name of a file");
  const fs::path parent = output.has_parent_path() ? output.parent_path() : fs::path(".");
  std::error_code failed;
  const auto kind = fs::status(output, failed).type();
  const bool is_loop = failed == std::errc::too_many_symbolic_link_levels;
  if (output.filename().empty() || kind == fs::file_type::directory) {
    throw usage_error(fmt::format("output '{}' is a directory", output.string()), "give the name of a file");
  }
  const auto parent_kind = fs::status(parent, failed).type();
  if (parent_kind == fs::file_type::not_found)
    throw usage_error(fmt::format("directory '{}' of output '{}' does not exist", parent.string(), output.string()),
                      "create it first");
  if (!failed && is_loop) failed = std::make_error_code(std::errc::too_many_symbolic_link_levels);
  if (!failed && parent_kind != fs::file_type::directory) failed = std::make_error_code(std::errc::not_a_directory);
  struct stat info {};
  if (!failed && ::lstat(output.c_str(), &info) != 0 && errno != ENOENT) failed = {errno, std::generic_category()};
  if (failed)
    throw failed_call(errno_of(failed), fmt::format("cannot write output '{}'", output.string()), ErrorKind::usage,
                      "choose another path");
  // Some folders and names tell only when a file is made, such as /proc and what is too long with a suffix.
  if (!fs::is_symlink(output, failed)) const AtomicFile claimed(output);
}

void check_output(const fs::path& output, const onnx::Model& model, const std::string& data_suffix) {
  check_place(output);
  // What is replaced or removed: also the data of a model that stands at the output.
  std::set<fs::path> gone = onnx::own_data_files(output);
  gone.insert(output);
  if (!data_suffix.empty()) gone.insert(output.string() + data_suffix);
  std::set<fs::path> sources{model.path};
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) sources.insert(tensor.data.file()->path());
  }
  for (const auto& source : sources) {
    if (std::any_of(gone.begin(), gone.end(), [&](const auto& file) { return is_same_file(file, source); })) {
      throw usage_error(fmt::format("output '{}' would overwrite '{}', which the model is read from", output.string(),
                                    source.string()),
                        "choose another --output");
    }
  }
  check_replaceable(output);
}

void check_outputs(const QuantizeOptions& options, const onnx::Model& model) {
  check_output(options.output, model, options.external_data_suffix);
  if (!options.kv_cache.scale_file) return;
  check_output(*options.kv_cache.scale_file, model);
  check_scale_file(*options.kv_cache.scale_file);
}

void check_apart(const std::vector<fs::path>& written, const std::optional<fs::path>& samples,
                 const std::optional<fs::path>& read) {
  std::set<fs::path> entries;
  for (const auto& path : written) {
    check_place(path);
    const fs::path entry = entry_of(path);
    if (!entries.insert(entry).second)
      throw usage_error(fmt::format("'{}' would be written twice", path.string()),
                        "give each output a name of its own");
    if (read && (entry == entry_of(*read) || is_same_file(path, *read)))  // it may not be there yet
      throw usage_error(fmt::format("output '{}' would overwrite '{}', which is read", path.string(), read->string()),
                        "choose another --output");
    if (samples && is_sample(entry, *samples)) {
      throw usage_error(fmt::format("output '{}' would overwrite a calibration sample", path.string()),
                        "choose another --output");
    }
  }
}

std::vector<fs::path> written_files(const QuantizeOptions& options) {
  std::vector<fs::path> files{options.output};
  if (!options.external_data_suffix.empty()) files.emplace_back(options.output.string() + options.external_data_suffix);
  if (options.prepared_output) files.push_back(*options.prepared_output);
  for (const auto& path : {options.profile, options.report, options.trace, options.kv_cache.scale_file}) {
    if (path) files.push_back(*path);
  }
  return files;
}

void write_output(onnx::Model& model, const QuantizeOptions& options, Prover* prove, QuantizeResult& result) {
  model.set_producer("detent", DETENT_VERSION);
  if (options.stop.stop_requested()) throw interrupted();
  const auto files = onnx::write_model(
      model, options.output, {options.external_data_threshold, options.external_data_suffix, [&](const auto& file) {
                                if (prove != nullptr) (*prove)(file);
                              }});
  if (options.kv_cache.scale_file && !result.kv_scales.empty())
    write_scale_file(*options.kv_cache.scale_file, result.kv_scales);
  result.model_bytes_after = files.model_bytes + files.data_bytes;
  if (auto needed = needed_runtime(model); !needed.empty()) result.notes.push_back(std::move(needed));
  result.conditions = loading_conditions(model);
  if (prove != nullptr) result.notes.insert(result.notes.end(), prove->notes().begin(), prove->notes().end());
}

std::uint64_t size_on_disk(const onnx::Model& model) {
  std::uint64_t bytes = model.file->bytes().size();
  for (const auto& tensor : model.graph.initializers) bytes += tensor.is_external ? tensor.data.size() : 0;
  return bytes;
}

}  // namespace detent::run
