#include "run/merged_statistics.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "calibration/statistics_file.h"
#include "shim/shared_work.h"

namespace detent::run {

void merge_statistics(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  const auto mine = calibration::encode(statistics);
  ranks.gather(
      std::as_bytes(std::span(mine)),
      [&](int rank, std::span<const std::byte> bytes) {
        statistics.merge(calibration::decode(bytes, fmt::format("what rank {} sent", rank)));
      },
      stop);
  const auto merged = ranks.rank() == 0 ? calibration::encode(statistics) : std::string();
  const auto bytes = std::as_bytes(std::span(merged));
  std::vector<std::byte> all(bytes.begin(), bytes.end());
  ranks.broadcast(all, stop);
  if (ranks.rank() != 0) statistics = calibration::decode(all, "what rank 0 sent");
}

}  // namespace detent::run
