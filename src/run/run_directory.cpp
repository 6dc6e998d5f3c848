#include "run/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/printable.h"

namespace detent::run {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIdentity = "run.json";

// A file's size and time of change: enough to see that it was replaced, without reading gigabytes.
std::string stamp(const fs::path& path) {
  return fmt::format("{} ({} bytes, {})", fs::absolute(path).string(), fs::file_size(path),
                     fs::last_write_time(path).time_since_epoch().count());
}

// Locks the directory for as long as the descriptor lives; invalid when another process holds it.
UniqueFd lock(const fs::path& directory) {
  UniqueFd fd(::open((directory / kIdentity).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid())
    throw resource_error(fmt::format("cannot use '{}': {}", directory.string(), errno_text(errno)),
                         "choose another --work-dir");
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(fd) : UniqueFd();
}

std::vector<fs::path> runs_for(const fs::path& work_dir, const nlohmann::json& wanted,
                               std::vector<nlohmann::json>& identities) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(work_dir, ignored)) {
    if (!entry.path().filename().string().starts_with("detent-")) continue;
    std::ifstream in(entry.path() / kIdentity);
    auto identity = nlohmann::json::parse(in, nullptr, false);
    if (!identity.is_object() || identity.value("output", "") != wanted.at("output")) continue;
    if (identity.value("rank", 0) != wanted.at("rank")) continue;
    found.push_back(entry.path());
    identities.push_back(std::move(identity));
  }
  return found;
}

// The first member that is not as it was, of those that there were if possible; empty: all are.
std::string difference(const nlohmann::json& before, const nlohmann::json& now) {
  std::string added;
  for (const auto& [key, value] : now.items()) {
    const auto earlier = before.find(key);
    if (earlier != before.end() && *earlier != value) return key;
    if (earlier == before.end() && added.empty()) added = key;
  }
  return added;
}

void remove_all_but_progress(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with("detent-")) fs::remove_all(entry.path());
  }
}

}  // namespace

nlohmann::json run_identity(const RunInputs& inputs) {
  std::set<fs::path> files;
  for (const auto& tensor : inputs.model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) files.insert(tensor.data.file()->path());
  }
  std::string external;
  for (const auto& file : files) external += stamp(file) + "\n";
  nlohmann::json identity{
      {"version", DETENT_VERSION},
      {"output", fs::weakly_canonical(fs::absolute(inputs.output)).string()},
      {"rank", inputs.rank},
      {"ranks", inputs.ranks},
      {"model", stamp(inputs.model.path)},
      {"external data", external},
      {"calibration data", inputs.calibration_data ? fs::absolute(*inputs.calibration_data).string() : ""},
      {"histograms (which the method needs)", inputs.histograms},
      {"votes (of --most-common)", inputs.votes}};
  identity.update(inputs.options);
  for (auto& member : identity) {  // JSON takes no other text than UTF-8
    if (member.is_string()) member = printable(member.get_ref<const std::string&>());
  }
  return identity;
}

RunDirectory::RunDirectory(const Resources& resources, const nlohmann::json& identity)
    : resume_(resources.resume), directory_(find_or_make(resources, identity)), scratch_(directory_.path()) {
  if (resume_) directory_.outlive_process();
}

TempDir RunDirectory::find_or_make(const Resources& resources, const nlohmann::json& identity) {
  const fs::path work_dir = resources.work_dir.value_or(default_work_dir());
  std::vector<nlohmann::json> identities;
  const auto runs = runs_for(work_dir, identity, identities);
  std::string changed;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!resources.resume) {
      if (lock(runs[i]).valid())
        notes_.push_back(
            fmt::format("there is an interrupted run for this output in '{}': continue it with --resume, or remove it",
                        runs[i].string()));
      continue;
    }
    const std::string differs = difference(identities[i], identity);
    if (!differs.empty()) {
      changed = fmt::format("'{}': its {} was {}, now it is {}", runs[i].string(), differs,
                            identities[i].value(differs, nlohmann::json()).dump(), identity.at(differs).dump());
      continue;
    }
    lock_ = lock(runs[i]);
    if (!lock_.valid())
      throw usage_error(fmt::format("the run in '{}' is still going on", runs[i].string()), "wait for it, or end it");
    remove_all_but_progress(runs[i]);
    resumed_ = true;
    return TempDir::adopt(runs[i]);
  }
  if (!changed.empty()) throw usage_error("cannot resume the run in " + changed, "run without --resume, or as before");
  TempDir fresh(work_dir);
  const std::string text = identity.dump();
  lock_ = lock(fresh.path());
  write_all(lock_.get(), std::as_bytes(std::span(text)), fresh.path() / kIdentity);
  if (resources.resume)
    notes_.emplace_back("there was no interrupted run to resume: this one starts from the beginning");
  return fresh;
}

RunDirectory::~RunDirectory() {
  if (resume_ && !finished_) directory_.keep();
}

}  // namespace detent::run
