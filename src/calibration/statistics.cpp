#include "calibration/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace detent::calibration {
namespace {

void add(Votes& votes, const Votes& more) {
  for (const auto& [exponent, count] : more) votes[exponent] += count;
}

}  // namespace

void Summary::merge(const Summary& other) {
  extremes.merge(other.extremes);
  histogram.merge(other.histogram);
  count += other.count;
  nan_count += other.nan_count;
  inf_count += other.inf_count;
  runs += other.runs;
  sum_of_minima.merge(other.sum_of_minima);
  sum_of_maxima.merge(other.sum_of_maxima);
  add(votes_8_bit, other.votes_8_bit);
  add(votes_16_bit, other.votes_16_bit);
}

void Statistics::merge(const Statistics& other) {
  for (const auto& [name, summary] : other.tensors) tensors[name].merge(summary);
  samples += other.samples;
  data += other.data;
}

void ExactSum::add(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t exponent = (bits >> 23) & 0xff;
  const std::uint64_t mantissa = (bits & 0x7fffff) | (exponent > 0 ? 0x800000U : 0U);
  const std::uint32_t shift = std::max(exponent, 1U) - 1;  // denormals weigh as the smallest normal exponent
  const std::uint64_t placed = mantissa << (shift % 32);
  const auto low = static_cast<std::int64_t>(placed & 0xffffffff);
  const auto high = static_cast<std::int64_t>(placed >> 32);
  const std::int64_t sign = (bits >> 31) != 0 ? -1 : 1;
  limbs_[shift / 32] += sign * low;
  limbs_[shift / 32 + 1] += sign * high;
}

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < kLimbs; ++i) {
    const std::int64_t over = limbs_[i] >> 32;  // rounds down, so what stays is not negative
    limbs_[i] -= over * (std::int64_t{1} << 32);
    limbs_[i + 1] += over;
  }
}

void ExactSum::merge(const ExactSum& other) {
  const Limbs theirs = other.limbs();
  for (std::size_t i = 0; i < kLimbs; ++i) limbs_[i] += theirs[i];
  carry();
}

ExactSum::Limbs ExactSum::limbs() const {
  ExactSum copy = *this;
  copy.carry();
  return copy.limbs_;
}

double ExactSum::value() const {
  Limbs limbs = this->limbs();
  // A small negative sum has large limbs that nearly cancel the last one: take the absolute value first.
  const bool negative = limbs.back() < 0;
  if (negative) {
    ExactSum absolute;
    for (std::size_t i = 0; i < kLimbs; ++i) absolute.limbs_[i] = -limbs[i];
    limbs = absolute.limbs();
  }
  double sum = 0;
  for (std::size_t i = kLimbs; i-- > 0;)
    sum += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(32 * i) - 149);
  return negative ? -sum : sum;
}

namespace {

constexpr std::int32_t kInfinityKey = 0x7f800000;

DETENT_VECTOR_CLONES
void scan_keys(const float* values, std::size_t count, std::int32_t* min, std::int32_t* max) {
  std::int32_t lo = *min;
  std::int32_t hi = *max;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t key = order_key(std::bit_cast<std::int32_t>(values[i]));
    lo = key < lo ? key : lo;
    hi = key > hi ? key : hi;
  }
  *min = lo;
  *max = hi;
}

}  // namespace

KeyRange scan(std::span<const float> values) noexcept {
  KeyRange range;
  scan_keys(values.data(), values.size(), &range.min, &range.max);
  return range;
}

bool KeyRange::finite() const noexcept {
  return empty() || (max < kInfinityKey && min > order_key(static_cast<std::int32_t>(0xff800000U)));
}
float KeyRange::lowest() const noexcept { return std::bit_cast<float>(order_key(min)); }
float KeyRange::highest() const noexcept { return std::bit_cast<float>(order_key(max)); }

namespace {

constexpr int kMantissaBits = 23;
constexpr std::size_t kNegative = 256;  // first row of negative values in the tables
constexpr std::size_t kFine = Histogram::kFineBins;

std::size_t bins_of_row(int octaves_below_top) { return std::size_t{1} << Histogram::bits_below(octaves_below_top); }

float edge(int exponent, std::size_t bin, std::size_t bins) {
  const auto mantissa = (static_cast<std::uint64_t>(bin) << kMantissaBits) / bins;
  // bin == bins carries into the exponent, which is the lower edge of the next octave.
  return std::bit_cast<float>(
      static_cast<std::uint32_t>((static_cast<std::uint64_t>(exponent) << kMantissaBits) + mantissa));
}

// Adds counts to a row that is as fine or coarser.
DETENT_VECTOR_CLONES
void add_fine(std::uint64_t* row, std::size_t bins, const std::uint32_t* counts) {
  if (bins == kFine) {
    for (std::size_t b = 0; b < kFine; ++b) row[b] += counts[b];
    return;
  }
  const std::size_t group = kFine / bins;
  for (std::size_t b = 0; b < bins; ++b) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < group; ++i) sum += counts[b * group + i];
    row[b] += sum;
  }
}

void add(Histogram::Counts& row, const Histogram::Counts& counts) {
  const std::size_t group = counts.size() / row.size();
  for (std::size_t b = 0; b < row.size(); ++b) {
    const auto part = std::span(counts).subspan(b * group, group);
    row[b] = std::accumulate(part.begin(), part.end(), row[b]);
  }
}

// The sum of the rows of all tables, which are cleared; returns whether it has any count.
DETENT_VECTOR_CLONES
bool take_row(std::uint32_t* row, std::size_t tables, std::size_t stride, std::uint32_t* sum) {
  for (std::size_t b = 0; b < kFine; ++b) sum[b] = 0;
  for (std::size_t t = 0; t < tables; ++t) {
    std::uint32_t* const part = row + t * stride;
    for (std::size_t b = 0; b < kFine; ++b) {
      sum[b] += part[b];
      part[b] = 0;
    }
  }
  std::uint32_t any = 0;
  for (std::size_t b = 0; b < kFine; ++b) any |= sum[b];
  return any != 0;
}

void check_rows(const Histogram::Rows& rows) {
  for (const auto& [exponent, counts] : rows) {
    const bool known = exponent >= 0 && exponent < Histogram::kExponents;
    if (!known || counts.size() != bins_of_row(rows.rbegin()->first - exponent))
      throw std::invalid_argument("a row of an impossible exponent or size");
    if (std::all_of(counts.begin(), counts.end(), [](auto c) { return c == 0; }))
      throw std::invalid_argument("an empty row");
  }
}

}  // namespace

Histogram::Histogram(Rows positive, Rows negative) : sides_{std::move(positive), std::move(negative)} {
  for (const auto& rows : sides_) check_rows(rows);
}

// The row of an exponent, made when missing. A new top row makes those below it coarser.
Histogram::Counts& Histogram::row(Rows& rows, int exponent) {
  const int top = rows.empty() ? -1 : rows.rbegin()->first;
  if (exponent > top) {
    for (auto& [e, counts] : rows) {
      const std::size_t bins = bins_of_row(exponent - e);
      if (bins == counts.size()) continue;
      Counts coarse(bins);
      add(coarse, counts);
      counts = std::move(coarse);
    }
  }
  const auto [it, added] = rows.try_emplace(exponent);
  if (added) it->second.resize(bins_of_row(std::max(top, exponent) - exponent));
  return it->second;
}

void Histogram::add_row(bool negative, int exponent, std::span<const std::uint32_t, kFineBins> counts) {
  Counts& into = row(sides_[negative ? 1 : 0], exponent);
  add_fine(into.data(), into.size(), counts.data());
}

void Histogram::add_table(std::span<std::uint32_t, kTable> table) {
  // As HistogramScratch::drain() does.
  table[0] += std::exchange(table[kNegative * kFine], 0);
  for (std::size_t r = kTable / kFine; r-- > 0;) {
    const auto counts = table.subspan(r * kFine).first<kFine>();
    const bool any = std::any_of(counts.begin(), counts.end(), [](std::uint32_t count) { return count != 0; });
    if (any) add_row(r >= kNegative, static_cast<int>(r % kNegative), counts);
  }
}

void Histogram::merge(const Histogram& other) {
  for (std::size_t side = 0; side < sides_.size(); ++side) {
    // From the top down, so that no row is ever finer than what is added to it.
    const Rows& theirs = other.sides_[side];
    for (auto it = theirs.rbegin(); it != theirs.rend(); ++it) add(row(sides_[side], it->first), it->second);
  }
}

std::uint64_t Histogram::total() const {
  std::uint64_t sum = 0;
  for (const auto& rows : sides_) {
    for (const auto& [exponent, counts] : rows) sum = std::accumulate(counts.begin(), counts.end(), sum);
  }
  return sum;
}

std::vector<Bin> Histogram::bins() const {
  std::vector<Bin> bins;
  const auto each = [](const Rows& rows, const auto& take) {
    for (const auto& [exponent, counts] : rows) {
      for (std::size_t b = 0; b < counts.size(); ++b) {
        if (counts[b] != 0) take(edge(exponent, b, counts.size()), edge(exponent, b + 1, counts.size()), counts[b]);
      }
    }
  };
  each(sides_[1], [&](float near, float far, std::uint64_t count) { bins.push_back({-far, -near, count}); });
  std::reverse(bins.begin(), bins.end());
  each(sides_[0], [&](float near, float far, std::uint64_t count) { bins.push_back({near, far, count}); });
  return bins;
}

std::size_t Histogram::memory_bytes() const {
  std::size_t bytes = sizeof(*this);
  constexpr std::size_t kNode = 4 * sizeof(void*) + sizeof(Rows::value_type);
  for (const auto& rows : sides_) {
    for (const auto& [exponent, counts] : rows) bytes += kNode + counts.size() * sizeof(std::uint64_t);
  }
  return bytes;
}

void HistogramScratch::count(std::span<const float> values) {
  tables_.resize(kTables * kTable);
  std::uint32_t* const table = tables_.data();
  std::uint8_t* const touched = touched_.data();
  const auto key = [](float v) { return std::bit_cast<std::uint32_t>(v) >> (kMantissaBits - Histogram::kFineBits); };
  std::size_t i = 0;
  for (; i + kTables <= values.size(); i += kTables) {
    std::array<std::uint32_t, kTables> keys;
    for (std::size_t t = 0; t < kTables; ++t) keys[t] = key(values[i + t]);
    for (std::size_t t = 0; t < kTables; ++t) ++table[t * kTable + keys[t]];
    for (std::size_t t = 0; t < kTables; ++t) touched[keys[t] / kBins] = 1;
  }
  for (; i < values.size(); ++i) {
    ++table[key(values[i])];
    touched[key(values[i]) / kBins] = 1;
  }
}

void HistogramScratch::drain(Histogram& histogram) {
  if (tables_.empty()) return;
  // -0 is 0: its count moves to the positive side, with the denormals above -2^-134 that share its bin.
  if (touched_[kNegative] != 0) {
    touched_[0] = 1;
    for (std::size_t t = 0; t < kTables; ++t)
      tables_[t * kTable] += std::exchange(tables_[t * kTable + kNegative * kBins], 0);
  }
  std::array<std::uint32_t, kBins> sum;
  // From the top down: a row's resolution is then known when it is made.
  for (std::size_t r = kRows; r-- > 0;) {
    if (touched_[r] == 0) continue;
    touched_[r] = 0;
    if (take_row(tables_.data() + r * kBins, kTables, kTable, sum.data()) == 0) continue;
    histogram.add_row(r >= kNegative, static_cast<int>(r % kNegative), sum);
  }
}

}  // namespace detent::calibration
