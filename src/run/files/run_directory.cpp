#include "run/files/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/text.h"
#include "calibration/statistics_file.h"
#include "shim/shared_work.h"

namespace detent::run {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHelper = "one that helps rank 0";
constexpr std::string_view kPrefix = "detent-run-";

std::string absolute_of(const fs::path& path) { return paths::absolute(path).string(); }

// JSON takes no other text than UTF-8; options may name nodes and files that are something else.
void make_printable(nlohmann::json& value) {
  if (value.is_string()) value = printable(value.get_ref<const std::string&>());
  if (!value.is_structured()) return;
  for (auto& member : value) make_printable(member);
}

// A file's size and time of change: enough to see that it was replaced, without reading gigabytes.
std::string stamp(const fs::path& path) {
  return fmt::format("{} ({} bytes, {})", absolute_of(path), paths::size_of(path),
                     paths::changed_at(path).time_since_epoch().count());
}

// A run that stands in the working directory, which is open to be locked.
struct Found {
  fs::path directory;
  nlohmann::json identity;
  UniqueFd file;
};

bool is_private(int fd, mode_t type, const fs::path& shown) {
  struct stat info {};
  if (fd >= 0 && ::fstat(fd, &info) != 0)
    throw failed_call(errno, fmt::format("cannot read '{}'", shown.string()), ErrorKind::bad_input);
  return fd >= 0 && (info.st_mode & S_IFMT) == type && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
}

// Opens what may be somebody else's, or gone by now (an invalid descriptor). Throws resource where the machine is at
// fault: a run that cannot be looked at must not be taken for none.
UniqueFd open_if_possible(int folder, const fs::path& name, int flags, const fs::path& shown) {
  UniqueFd fd(::openat(folder, name.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid() && is_machine_fault(errno))
    throw failed_call(errno, fmt::format("cannot open '{}'", shown.string()), ErrorKind::bad_input);
  return fd;
}

// Locked for as long as the descriptor lives; false when another process holds it.
bool lock(const UniqueFd& file) { return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0; }

// Whether there is an identity, by now, as whoever had the lock before has left it.
bool has_identity(const fs::path& directory) {
  std::error_code failed;
  return fs::exists(directory / kIdentityFile, failed) || failed;
}

bool is_of_runs(const fs::path& directory) { return directory.filename().string().starts_with(kPrefix); }

// Whether a process was killed before it could say whose its directory is, or while it removed it: its identity is
// empty, or zeros after a power failure. Who makes one just then makes another (see lock_identity()).
bool is_abandoned(const fs::path& directory, const UniqueFd& identity, const std::string& text) {
  if (!is_of_runs(directory) || text.find_first_not_of('\0') != std::string::npos || !lock(identity)) return false;
  struct stat info {};
  return ::fstat(identity.get(), &info) == 0 && info.st_size == static_cast<off_t>(text.size());
}

// The working directory may be everybody's, as /tmp is: what stands there counts only when this user made it and nobody
// else may change it. Links are not followed, and nothing is waited for.
std::optional<Found> read_run(const fs::path& directory) {
  const UniqueFd folder = open_if_possible(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY, directory);
  if (!is_private(folder.get(), S_IFDIR, directory)) return std::nullopt;
  UniqueFd file = open_if_possible(folder.get(), kIdentityFile, O_RDWR, directory / kIdentityFile);
  if (!file.valid() && is_of_runs(directory)) ::rmdir(directory.c_str());  // for the same reasons as in is_abandoned()
  if (!is_private(file.get(), S_IFREG, directory / kIdentityFile)) return std::nullopt;
  try {
    const std::string text = read_small_file(file.get(), directory / kIdentityFile, "run");
    if (is_abandoned(directory, file, text)) remove_tree(directory.c_str());
    auto identity = parse_json(text);
    if (identity && identity->is_object()) return Found{directory, std::move(*identity), std::move(file)};
  } catch (const Error& e) {  // damaged: of no use, and no harm to others
    if (e.kind() == ErrorKind::resource) throw;
    return std::nullopt;
  }
  return std::nullopt;
}

// Throws resource when the machine does not let all be looked at.
std::vector<Found> runs_for(const fs::path& work_dir, const nlohmann::json& wanted) {
  std::vector<Found> found;
  std::error_code failed;
  for (fs::directory_iterator entry(work_dir, failed), end; !failed && entry != end; entry.increment(failed)) {
    if (!entry->path().filename().string().starts_with("detent-")) continue;
    auto run = read_run(entry->path());
    if (!run || run->identity.value("output", nlohmann::json()) != wanted.at("output")) continue;
    const auto rank = run->identity.value("rank", nlohmann::json());
    if (rank == wanted.at("rank") || rank == kHelper) found.push_back(std::move(*run));
  }
  if (failed && is_machine_fault(errno_of(failed)))
    throw failed_call(errno_of(failed), fmt::format("cannot list '{}'", work_dir.string()), ErrorKind::usage);
  return found;  // where it failed otherwise, making a directory there tells more
}

std::vector<Found> runs_of_concern(const fs::path& work_dir, const nlohmann::json& wanted, bool resume) {
  try {
    return runs_for(work_dir, wanted);
  } catch (const Error&) {
    if (resume) throw;
    return {};  // they would only be mentioned
  }
}

void sync_folder(const fs::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems know no fsync of a directory.
  if (!fd.valid() || (::fsync(fd.get()) != 0 && errno != EINVAL))
    throw failed_call(errno, fmt::format("cannot write '{}'", folder.string()), ErrorKind::usage);
}

// Invalid where the directory was taken for an abandoned one, since it had no identity, or none that was locked.
UniqueFd lock_identity(const fs::path& directory) {
  UniqueFd file(::open((directory / kIdentityFile).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.valid() && lock(file)) return has_identity(directory) ? std::move(file) : UniqueFd();
  if (errno == (file.valid() ? EWOULDBLOCK : ENOENT)) return {};
  throw failed_call(errno, fmt::format("cannot use '{}'", directory.string()), ErrorKind::resource,
                    "choose another --work-dir");
}

// With an identity that is empty.
TempDir make_locked(const fs::path& work_dir, UniqueFd& identity) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    TempDir fresh = named_temp_dir(work_dir, kPrefix);
    identity = lock_identity(fresh.path());
    if (identity.valid()) return fresh;
  }
  throw resource_error(fmt::format("what detent makes in '{}' is removed at once", work_dir.string()),
                       "choose another --work-dir");
}

// `durable`: it is on the disk when this returns, since what is saved later is of no use without it.
void write_identity(const UniqueFd& file, const fs::path& directory, const nlohmann::json& identity, bool durable) {
  const fs::path path = directory / kIdentityFile;
  const std::string text = json_text(identity);
  write_all(file.get(), std::as_bytes(std::span(text)), path);
  if (!durable) return;
  if (::fsync(file.get()) != 0)
    throw failed_call(errno, fmt::format("cannot write '{}'", path.string()), ErrorKind::usage);
  sync_folder(directory);
  sync_folder(directory.parent_path());
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

// Each rank of a shared run has a directory of its own. That of rank 0 alone is resumed, by any number of ranks.
nlohmann::json identity_of_rank(nlohmann::json identity, const Resources& resources) {
  if (shim::rank_of(resources.ranks) != 0) identity["rank"] = kHelper;
  return identity;
}

// Nobody goes on with what a process had that helped rank 0.
void remove_abandoned_helpers(std::vector<Found>& runs) {
  for (const auto& run : runs) {
    if (run.identity.at("rank") == kHelper && lock(run.file)) paths::remove(run.directory);
  }
  std::erase_if(runs, [](const Found& run) { return run.identity.at("rank") == kHelper; });
}

void remove_all_but_progress(const fs::path& directory) {
  for (const auto& entry : paths::entries_of(directory)) {
    if (entry.filename().string().starts_with("detent-")) paths::remove(entry);
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
  nlohmann::json identity{{"version", DETENT_VERSION},
                          {"output", paths::resolved(inputs.output).string()},
                          {"rank", inputs.rank},
                          {"ranks", inputs.ranks},
                          {"model", stamp(inputs.model.path)},
                          {"external data", external},
                          {"calibration data", inputs.calibration_data ? absolute_of(*inputs.calibration_data) : ""},
                          {"histograms (which the method needs)", inputs.histograms},
                          {"votes (of --set most-common)", inputs.votes}};
  identity.update(inputs.options);
  make_printable(identity);
  return identity;
}

RunDirectory::RunDirectory(const Resources& resources, const nlohmann::json& identity)
    : resume_(resources.resume),
      directory_(find_or_make(resources, identity_of_rank(identity, resources))),
      scratch_(directory_.path()) {
  if (resume_) directory_.outlive_process();
}

TempDir RunDirectory::find_or_make(const Resources& resources, const nlohmann::json& identity) {
  const fs::path work_dir = resources.work_dir.value_or(default_work_dir());
  std::string changed;
  auto runs = runs_of_concern(work_dir, identity, resources.resume);
  remove_abandoned_helpers(runs);
  for (auto& run : runs) {
    if (!resources.resume) {
      if (lock(run.file) && has_identity(run.directory))
        notes_.push_back(
            fmt::format("there is an interrupted run for this output in '{}': continue it with --resume, or remove it",
                        run.directory.string()));
      continue;
    }
    const std::string differs = difference(run.identity, identity);
    if (!differs.empty()) {
      changed = fmt::format("'{}': its {} was {}, now it is {}", run.directory.string(), differs,
                            json_text(run.identity.value(differs, nlohmann::json())), json_text(identity.at(differs)));
      continue;
    }
    if (!lock(run.file))
      throw usage_error(fmt::format("the run in '{}' is still going on", run.directory.string()),
                        "wait for it, or end it");
    if (!has_identity(run.directory)) continue;  // it has just ended
    lock_ = std::move(run.file);
    remove_all_but_progress(run.directory);
    resumed_ = true;
    return TempDir::adopt(run.directory);
  }
  if (!changed.empty()) throw usage_error("cannot resume the run in " + changed, "run without --resume, or as before");
  if (resources.resume && !has_identity(work_dir))  // else a part of a run, which has told it
    notes_.emplace_back("there was no interrupted run to resume: this one starts from the beginning");
  return make(work_dir, identity);
}

TempDir RunDirectory::make(const fs::path& work_dir, const nlohmann::json& identity) {
  TempDir fresh = make_locked(work_dir, lock_);
  write_identity(lock_, fresh.path(), identity, resume_);
  return fresh;
}

PrivateDirectory::PrivateDirectory(const Resources& resources)
    : directory_(make_locked(resources.work_dir.value_or(default_work_dir()), lock_)) {}

PrivateDirectory::~PrivateDirectory() { release_to_others(lock_); }

RunDirectory::~RunDirectory() {
  if (resume_ && !finished_) directory_.keep();
  release_to_others(lock_);
}

namespace {

void add(Hasher& hasher, const MappedFile& file, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  hasher.add(std::uint64_t{bytes.size()});
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    hasher.add(piece);
    file.release(piece);
  }
}

}  // namespace

ModelFingerprint::ModelFingerprint(const onnx::Model& model) {
  Hasher hasher;
  add(hasher, *model.file, model.file->bytes());
  sum_ = hasher.result();
  for (const auto& tensor : model.graph.initializers) {
    if (tensor.is_external && tensor.data.file()) left_.emplace(tensor.name, tensor.data);
  }
}

void ModelFingerprint::take(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto found = left_.find(name);
    if (found == left_.end()) continue;
    Hasher hasher;
    hasher.add(name);
    add(hasher, *found->second.file(), found->second.bytes());
    sum_ += hasher.result();
    left_.erase(found);
  }
}

Fingerprint ModelFingerprint::finish() {
  while (!left_.empty()) take({left_.begin()->first});
  return sum_;
}

Fingerprint fingerprint_of(const onnx::Model& model) { return ModelFingerprint(model).finish(); }

Fingerprint fingerprint_of(const data::Sample& sample) {
  Hasher hasher;
  for (const auto& array : sample.inputs) {
    hasher.add(static_cast<std::uint64_t>(array.type));
    hasher.add(std::uint64_t{array.shape.size()});
    for (const auto d : array.shape) hasher.add(static_cast<std::uint64_t>(d));
    hasher.add(array.bytes);
  }
  return hasher.result();
}

Fingerprint fingerprint_of(data::SampleSource& source) {
  Fingerprint all;
  while (const auto sample = source.next()) all += fingerprint_of(*sample);
  return all;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kFile = "progress.json";

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string statistics_name(std::size_t number) { return fmt::format("statistics-{}", number); }

[[noreturn]] void throw_damaged(const fs::path& path) {
  throw bad_input(fmt::format("'{}' is damaged", path.string()), "run without --resume");
}

nlohmann::json read_json(const fs::path& path) {
  auto json = parse_sealed_json(read_small_file(path, "progress"));
  if (!json) throw_damaged(path);
  return std::move(*json);
}

std::size_t last_save(const fs::path& path) {
  try {
    return read_json(path).at("save").get<std::size_t>();
  } catch (const nlohmann::json::exception&) {
    throw_damaged(path);
  }
}

}  // namespace

Checkpoints::Checkpoints(fs::path directory, double seconds, int shares)
    : directory_(std::move(directory)), seconds_(seconds), shares_(shares), due_(after(seconds)) {}

std::optional<CalibrationProgress> Checkpoints::load() const {
  const fs::path path = directory_ / kFile;
  if (!paths::exists(path)) return std::nullopt;
  const auto json = read_json(path);
  try {
    if (json.value("shares", 1) != shares_) return std::nullopt;
    CalibrationProgress progressed;
    progressed.cuts = json.at("cuts").get<std::vector<int>>();
    progressed.segment = json.at("segment");
    progressed.done = json.at("done");
    progressed.samples = json.at("samples");
    progressed.statistics =
        calibration::read_statistics(directory_ / statistics_name(json.at("save").get<std::size_t>()));
    return progressed;
  } catch (const nlohmann::json::exception&) {
    throw_damaged(path);
  }
}

void Checkpoints::save(const CalibrationProgress& progressed) {
  const auto start = Clock::now();
  failpoint("checkpoint.begin");
  // An earlier process may have left files: numbers only have to differ from the one that counts now.
  if (number_ == 0 && paths::exists(directory_ / kFile)) number_ = last_save(directory_ / kFile);
  const std::size_t previous = number_++;
  calibration::write_statistics(progressed.statistics, directory_ / statistics_name(number_));
  failpoint("checkpoint.statistics");
  const nlohmann::json json{{"cuts", progressed.cuts}, {"segment", progressed.segment},
                            {"done", progressed.done}, {"samples", progressed.samples},
                            {"shares", shares_},       {"save", number_}};
  AtomicFile file(directory_ / kFile);
  const std::string text = sealed_json_text(json);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  failpoint("checkpoint.saved");
  std::error_code ignored;
  fs::remove(directory_ / statistics_name(previous), ignored);
  constexpr double kShare = 0.01;
  const double cost = std::chrono::duration<double>(Clock::now() - start).count();
  due_ = after(seconds_ > 0 ? std::max(seconds_, cost / kShare) : 0);
}

}  // namespace detent::run
