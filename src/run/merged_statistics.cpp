#include "run/merged_statistics.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "calibration/statistics_file.h"
#include "shim/shared_work.h"

namespace detent::run {

void gather_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  const auto mine = ranks.rank() == 0 ? std::string() : calibration::encode(statistics);
  ranks.gather(
      std::as_bytes(std::span(mine)),
      [&](int rank, std::span<const std::byte> bytes) {
        const auto where = fmt::format("what rank {} sent", rank);
        const auto theirs = calibration::decode(bytes, where);
        if (theirs.model != statistics.model)
          throw bad_input(fmt::format("rank {} calibrated another model file", rank), "give all ranks the same files");
        calibration::check_mergeable(statistics, theirs, where);
        statistics.merge(theirs);
      },
      stop);
}

void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  gather_statistics(ranks, statistics, stop);
  const auto merged = ranks.rank() == 0 ? calibration::encode(statistics) : std::string();
  const auto bytes = std::as_bytes(std::span(merged));
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  ranks.broadcast(all, stop);
  if (ranks.rank() != 0) statistics = calibration::decode(all, "what rank 0 sent");
}

}  // namespace detent::run
