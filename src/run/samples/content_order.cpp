#include "run/samples/content_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "data/buffer.h"
#include "data/floats.h"
#include "exec/emit.h"
#include "run/comparison/pairing.h"
#include "run/files/model_fingerprint.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

// Results of a row alone and in a batch differ by rounding: this much of the energy is more than that (60 dB).
constexpr double kSame = 1e-6;

std::int64_t rows_of(const data::Sample& sample) {
  std::int64_t rows = -1;
  for (const auto& input : sample.inputs) {
    if (input.shape.empty() || (rows >= 0 && input.shape[0] != rows)) return 1;
    rows = input.shape[0];
  }
  return std::max<std::int64_t>(rows, 1);
}

data::Array row_of(const data::Array& array, std::size_t row) {
  data::Array one = array;
  const std::size_t size = array.bytes.size() / static_cast<std::size_t>(array.shape[0]);
  one.shape[0] = 1;
  one.bytes = array.bytes.subspan(row * size, size);
  return data::aligned(std::move(one), "a row");
}

data::Sample row_of(const data::Sample& sample, std::size_t row) {
  data::Sample one{fmt::format("{}[{}:{}]", sample.origin, row, row + 1), {}};
  for (const auto& input : sample.inputs) one.inputs.push_back(row_of(input, row));
  return one;
}

bool is_same(const data::Array& a, const data::Array& b) {
  if (a.type != b.type || a.shape != b.shape) return false;
  if (!data::holds_floats(a.type)) return std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end());
  PairSums sums;
  sums.add(a, b);
  return sums.noise <= kSame * sums.signal;
}

// Nothing where the model takes no single row: constants may hold for the whole number of rows, whatever it declares.
std::vector<data::Array> run_alone(exec::Session& session, const data::Sample& row) {
  try {
    return session.run(row.inputs, row.origin);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input) throw;
    return {};
  }
}

}  // namespace

bool rows_are_samples(const exec::Runtime& runtime, const onnx::Model& model, const data::Sample& sample, int threads) {
  const std::int64_t rows = rows_of(sample);
  if (rows < 2) return false;
  for (const auto& input : input_specs(model)) {
    if (input.shape && (input.shape->empty() || input.shape->front() >= 0)) return false;
  }
  exec::Session session(runtime, exec::emit(model), "the float model", {exec::SessionMode::lean, threads, {}});
  const auto together = session.run(sample.inputs, sample.origin);
  for (const std::int64_t row : {std::int64_t{0}, rows - 1}) {
    const auto at = static_cast<std::size_t>(row);
    const auto alone = run_alone(session, row_of(sample, at));
    if (alone.empty()) return false;
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto& all = together[i];
      if (all.shape.empty() || all.shape[0] != rows || !is_same(row_of(all, at), alone[i])) return false;
    }
  }
  return true;
}

std::vector<data::Sample> ContentOrderedSamples::units_of(data::Sample sample) const {
  std::vector<data::Sample> units;
  const std::int64_t rows = options_.rows ? rows_of(sample) : 1;
  if (rows == 1) {
    units.push_back(std::move(sample));
  } else {
    for (std::int64_t r = 0; r < rows; ++r) units.push_back(row_of(sample, static_cast<std::size_t>(r)));
  }
  return units;
}

const std::vector<ContentOrderedSamples::Place>& ContentOrderedSamples::order() const {
  if (!order_.empty()) return order_;
  inner_.rewind();
  for (std::size_t at = 0; options_.most == 0 || at < options_.most; ++at) {
    auto sample = inner_.next();
    if (!sample) break;
    const auto units = units_of(std::move(*sample));
    for (std::size_t row = 0; row < units.size(); ++row) {
      order_.push_back({fingerprint_of(units[row]), bytes_of(units[row].inputs), at, row});
    }
  }
  std::stable_sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) {
    return std::tie(a.content.high, a.content.low) < std::tie(b.content.high, b.content.low);
  });
  return order_;
}

// The next samples, as many as may be held, in one pass over the inner source.
void ContentOrderedSamples::read_ahead() {
  ahead_.clear();
  std::map<std::size_t, std::vector<std::size_t>> wanted;  // positions here, by sample of the inner source
  std::uint64_t bytes = 0;
  for (std::size_t at = next_; at < order_.size() && (at == next_ || bytes + order_[at].bytes <= options_.ahead);
       ++at) {
    wanted[order_[at].sample].push_back(at);
    bytes += order_[at].bytes;
    ahead_.push_back({at, {}});
  }
  inner_.rewind();
  std::size_t passed = 0;
  for (const auto& [number, positions] : wanted) {
    inner_.skip(number - passed);
    passed = number + 1;
    auto sample = inner_.next();
    if (!sample) break;
    const auto units = units_of(std::move(*sample));
    for (const auto at : positions) ahead_[at - next_].sample = units.at(order_[at].row);
  }
}

void ContentOrderedSamples::keep(bool keeps) {
  keeps_ = keeps;
  if (!keeps_) ahead_.clear();
}

std::optional<data::Sample> ContentOrderedSamples::next() {
  if (next_ == order().size()) return std::nullopt;
  const bool is_there = !ahead_.empty() && ahead_.front().position <= next_ && next_ <= ahead_.back().position;
  if (!is_there) read_ahead();
  if (keeps_) return ahead_[next_++ - ahead_.front().position].sample;
  ahead_.erase(ahead_.begin(), ahead_.begin() + static_cast<std::ptrdiff_t>(next_ - ahead_.front().position));
  auto sample = std::move(ahead_.front().sample);
  ahead_.pop_front();
  ++next_;
  return sample;
}

}  // namespace detent::run
