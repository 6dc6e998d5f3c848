#include "data/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"
#include "data/pictures.h"

namespace detent::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kSetPrefix = "test_data_set_";

std::string expectation(std::span<const InputSpec> inputs) {
  const std::string_view npy = inputs.size() == 1 ? "*.npy, *.wav, " : "";
  return fmt::format("expected *.npz, {}<input>/*.npy or test_data_set_*/input_N.pb; {}", npy, describe_inputs(inputs));
}

/// "12 files (10 .jpg, 2 .txt) and 1 folder"
std::string summary(const Listing& listing) {
  std::map<std::string, std::size_t> extensions;
  for (const std::string& name : listing.files) ++extensions[printable(fs::path(name).extension().string(), 20)];
  std::vector<std::pair<std::string, std::size_t>> kinds(extensions.begin(), extensions.end());
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  kinds.resize(std::min<std::size_t>(kinds.size(), 4));
  std::vector<std::string> parts;
  parts.reserve(kinds.size());
  for (const auto& [extension, count] : kinds) {
    parts.push_back(fmt::format("{} {}", count, extension.empty() ? "without extension" : extension));
  }
  std::string text;
  if (!parts.empty())
    text = fmt::format("{} ({})", count_with_noun(listing.files.size(), "file"), fmt::join(parts, ", "));
  if (listing.folders.empty()) return text;
  return text + (text.empty() ? "" : " and ") + count_with_noun(listing.folders.size(), "folder");
}

std::vector<std::string> with_extension(const std::vector<std::string>& names, std::string_view extension) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name.ends_with(extension); });
  std::sort(found.begin(), found.end(), natural_less);
  return found;
}

bool has_folder(const Listing& listing, const std::string& name) {
  return std::find(listing.folders.begin(), listing.folders.end(), name) != listing.folders.end();
}

FileSet single_file(const fs::path& path, std::span<const InputSpec> inputs) {
  const std::string extension = path.extension().string();
  if (extension != ".npy" && extension != ".npz" && extension != ".wav") {
    throw bad_input(fmt::format("calibration data {} is no .npy, .npz or .wav file", quoted(path)),
                    "give a directory, or a file of one of these; folders of pictures go by --images");
  }
  if (extension != ".npz" && inputs.size() != 1) {
    throw bad_input(
        fmt::format("{} holds one array, the model has {} inputs", quoted(path), inputs.size()),
        fmt::format("give inputs that are one number by --input NAME=NUMBER, or a .npz with all of them; {}",
                    describe_inputs(inputs)));
  }
  const Layout layout = extension == ".npz" ? Layout::npz : extension == ".npy" ? Layout::npy : Layout::wav;
  return {layout, path.parent_path(), {path.filename().string()}};
}

[[noreturn]] void throw_missing_folder(const fs::path& root, const InputSpec& input, const Listing& listing) {
  std::vector<std::string> folders = listing.folders;
  std::sort(folders.begin(), folders.end(), natural_less);
  folders.resize(std::min<std::size_t>(folders.size(), 12));
  throw bad_input(fmt::format("{} has no folder for the input '{}' (found: {})", quoted(root),
                              printable(input.name, 120), printable(fmt::format("{}", fmt::join(folders, ", ")))),
                  input.name.find('/') == std::string::npos ? "make one folder for each input, named as the input"
                                                            : "a name with '/' cannot be a folder: use .npz files");
}

FileSet per_input(const fs::path& root, const Listing& listing, std::span<const InputSpec> inputs) {
  FileSet set{Layout::per_input, root, {}};
  for (const InputSpec& input : inputs) {
    if (!has_folder(listing, input.name)) throw_missing_folder(root, input, listing);
    const Listing inside = list_folder(root / input.name);
    std::vector<std::string> names = with_extension(inside.files, ".npy");
    if (names.empty()) {
      const std::string found = summary(inside);
      throw bad_input(fmt::format("{} holds no .npy file{}", quoted(root / input.name),
                                  found.empty() ? "" : fmt::format(" (found {})", found)));
    }
    if (&input == &inputs.front()) {
      set.names = std::move(names);
    } else if (names != set.names) {
      std::vector<std::string> lone;
      std::set_symmetric_difference(names.begin(), names.end(), set.names.begin(), set.names.end(),
                                    std::back_inserter(lone), natural_less);
      const bool here = std::binary_search(names.begin(), names.end(), lone.front(), natural_less);
      const std::string& has = here ? input.name : inputs.front().name;
      const std::string& lacks = here ? inputs.front().name : input.name;
      throw bad_input(fmt::format("{} exists for the input '{}' but not for '{}'", quoted(root / has / lone.front()),
                                  printable(has, 120), printable(lacks, 120)),
                      "files of the same name make a sample: each input's folder must hold the same names");
    }
  }
  return set;
}

/// There or in folders below, as pictures are often sorted by class.
bool holds_pictures(const fs::path& root) {
  constexpr int kMost = 1000;  // entries looked at: this only finds the words of an error
  std::error_code failed;
  int seen = 0;
  for (fs::recursive_directory_iterator at(root, failed), end; !failed && at != end && seen < kMost;
       at.increment(failed), ++seen) {
    if (is_picture(at->path().filename().string())) return true;
  }
  return false;
}

[[noreturn]] void throw_nothing(const fs::path& root, const Listing& listing, std::span<const InputSpec> inputs) {
  const std::string found = summary(listing);
  if (found.empty()) throw bad_input(fmt::format("calibration data {} is empty", quoted(root)), expectation(inputs));
  if (holds_pictures(root))
    throw bad_input(fmt::format("{} holds pictures, and no calibration data; found {}", quoted(root), found),
                    fmt::format("give them by --images {} --image-preset imagenet, 01, 11, 255 or yolo; {}",
                                printable(root.string()), expectation(inputs)));
  throw bad_input(fmt::format("{} holds no calibration data; found {}", quoted(root), found), expectation(inputs));
}

/// Drops a trailing slash and dots, so that the last component is a name.
fs::path normal(const fs::path& path) {
  fs::path result = path.lexically_normal();
  if (!result.has_filename() && result.has_relative_path()) result = result.parent_path();
  return result;
}

}  // namespace

std::optional<std::size_t> pb_index(std::string_view name) noexcept {
  constexpr std::string_view kPrefix = "input_";
  constexpr std::string_view kSuffix = ".pb";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() <= kPrefix.size() + kSuffix.size()) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  std::size_t value = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Listing list_folder(const fs::path& folder) {
  Listing listing;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code ignored;  // what cannot be told apart counts as a file, and is reported when it is opened
    (at->is_directory(ignored) ? listing.folders : listing.files).push_back(std::move(name));
  }
  if (failed) throw failed_call(errno_of(failed), fmt::format("cannot list {}", quoted(folder)), ErrorKind::bad_input);
  return listing;
}

FileSet find_files(const fs::path& path, std::span<const InputSpec> inputs) {
  if (inputs.empty()) throw bad_input("the model has no inputs, so calibration data cannot feed it");
  const fs::path root = normal(path);
  std::error_code failed;
  const fs::file_status status = fs::status(root, failed);
  if (status.type() == fs::file_type::not_found) {
    throw bad_input(fmt::format("calibration data {} does not exist", quoted(path)), expectation(inputs));
  }
  if (failed)
    throw failed_call(errno_of(failed), fmt::format("cannot open calibration data {}", quoted(path)),
                      ErrorKind::bad_input);
  if (status.type() != fs::file_type::directory) return single_file(root, inputs);

  const Listing listing = list_folder(root);
  std::vector<std::string> npz = with_extension(listing.files, ".npz");
  std::vector<std::string> npy = with_extension(listing.files, ".npy");
  std::vector<std::string> wav = with_extension(listing.files, ".wav");
  std::vector<std::string> sets;
  std::copy_if(listing.folders.begin(), listing.folders.end(), std::back_inserter(sets),
               [](const std::string& name) { return name.starts_with(kSetPrefix); });
  std::sort(sets.begin(), sets.end(), natural_less);
  const bool any_pb = std::any_of(listing.files.begin(), listing.files.end(),
                                  [](const std::string& name) { return pb_index(name).has_value(); });
  const bool any_input = std::any_of(inputs.begin(), inputs.end(),
                                     [&](const InputSpec& input) { return has_folder(listing, input.name); });

  std::vector<std::string> layouts;
  if (!npz.empty()) layouts.push_back("*.npz");
  if (!npy.empty()) layouts.push_back("*.npy");
  if (!wav.empty()) layouts.push_back("*.wav");
  if (any_input) layouts.push_back("<input>/*.npy");
  if (!sets.empty()) layouts.push_back("test_data_set_*");
  if (any_pb) layouts.push_back("input_N.pb");
  if (layouts.empty()) throw_nothing(root, listing, inputs);
  if (layouts.size() > 1) {
    throw bad_input(fmt::format("{} mixes layouts: {}", quoted(root), fmt::join(layouts, " and ")),
                    "use one layout in a directory");
  }
  if (!npz.empty()) return {Layout::npz, root, std::move(npz)};
  if (any_input) return per_input(root, listing, inputs);
  if (!sets.empty()) return {Layout::test_sets, root, std::move(sets)};
  if (any_pb) {
    const fs::path whole = paths::absolute(root).lexically_normal();
    const fs::path folder = normal(whole);
    return {Layout::test_sets, folder.parent_path(), {folder.filename().string()}};
  }
  if (inputs.size() != 1) {
    throw bad_input(
        fmt::format("{} holds {} files for one input, the model has {}", quoted(root), wav.empty() ? ".npy" : ".wav",
                    inputs.size()),
        fmt::format("give inputs that are one number by --input NAME=NUMBER, or use .npz files or one folder "
                    "for each input; {}",
                    describe_inputs(inputs)));
  }
  if (!wav.empty()) return {Layout::wav, root, std::move(wav)};
  return {Layout::npy, root, std::move(npy)};
}

}  // namespace detent::data
