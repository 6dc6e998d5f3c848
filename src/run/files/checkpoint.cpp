#include "run/files/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/json.h"
#include "base/paths.h"
#include "base/small_file.h"
#include "calibration/statistics_file.h"

namespace detent::run {
namespace fs = std::filesystem;
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
