#include "run/outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/error.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

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

std::vector<fs::path> written_files(const QuantizeOptions& options) {
  std::vector<fs::path> files{options.output, options.output.string() + ".data"};
  if (options.prepared_output) {
    files.push_back(*options.prepared_output);
    files.emplace_back(options.prepared_output->string() + ".data");
  }
  for (const auto& path : {options.profile, options.report, options.trace}) {
    if (path) files.push_back(*path);
  }
  return files;
}

std::uint64_t size_on_disk(const onnx::Model& model) {
  std::uint64_t bytes = model.file->bytes().size();
  for (const auto& tensor : model.graph.initializers) bytes += tensor.is_external ? tensor.data.size() : 0;
  return bytes;
}

}  // namespace detent::run
