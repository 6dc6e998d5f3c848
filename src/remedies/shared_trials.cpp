#include "remedies/shared_trials.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "shim/shared_work.h"

namespace detent::remedies {
namespace {

// All ranks run the same program on the same kind of machine, so that values go as they lie in memory.
class Writer {
 public:
  template <typename T>
  void add(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto more = std::as_bytes(values);
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  template <typename T>
  void add(const T& value) {
    add(std::span<const T>(&value, 1));
  }
  void add(const std::vector<run::PairSums>& sums) {
    add(sums.size());
    add(std::span(sums));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  Reader(int rank, std::span<const std::byte> bytes) : rank_(rank), left_(bytes) {}

  bool is_at_end() const { return left_.empty(); }
  template <typename T>
  void read(std::span<T> values) {
    require(values.size_bytes() <= left_.size());
    if (!values.empty()) std::memcpy(values.data(), left_.data(), values.size_bytes());
    left_ = left_.subspan(values.size_bytes());
  }
  template <typename T>
  void read(T& value) {
    read(std::span(&value, 1));
  }
  void read(std::vector<run::PairSums>& sums) {
    std::size_t count = 0;
    read(count);
    require(count <= left_.size() / sizeof(run::PairSums));
    sums.resize(count);
    read(std::span(sums));
  }

 private:
  void require(bool holds) const {
    if (!holds) throw shim::unexpected_message(rank_, "results of trials that break off");
  }

  int rank_;
  std::span<const std::byte> left_;
};

std::vector<std::byte> written(const std::vector<TrialResult>& results) {
  Writer writer;
  for (const auto& result : results) {
    writer.add(result.points);
    writer.add(result.outputs);
    writer.add(result.log_errors);
    writer.add(result.pairs);
  }
  return writer.take();
}

}  // namespace

std::vector<TrialResult> share_trials(
    shim::Ranks* ranks, std::span<const Trial> trials, const std::stop_token& stop,
    const std::function<std::vector<TrialResult>(std::span<const Trial> trials)>& run) {
  if (shim::size_of(ranks) == 1 || trials.size() < 2) return run(trials);
  const auto [first, end] = shim::share_of(ranks, trials.size());
  const auto mine = first < end ? run(trials.subspan(first, end - first)) : std::vector<TrialResult>();
  std::vector<TrialResult> all;
  const auto of_all = shim::all_gather(ranks, written(mine), stop);
  for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
    for (Reader reader(static_cast<int>(rank), of_all[rank]); !reader.is_at_end();) {
      auto& result = all.emplace_back();
      reader.read(result.points);
      reader.read(result.outputs);
      reader.read(result.log_errors);
      reader.read(result.pairs);
    }
  }
  if (all.size() != trials.size())
    throw device_error(fmt::format("the ranks sent results of {} trials, not of {}", all.size(), trials.size()));
  return all;
}

}  // namespace detent::remedies
