#include "calibrate/histogram.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace detent::calibration {
namespace {

constexpr std::size_t kCoarseBins = std::size_t{1} << Histogram::kCoarseBits;
constexpr int kMantissaBits = 23;
constexpr int kNegative = 256;

float edge(int exponent, std::size_t bin, int bits) {
  const auto mantissa = static_cast<std::uint64_t>(bin) << (kMantissaBits - bits);
  // bin == 2^bits carries into the exponent, which is the lower edge of the next octave.
  return std::bit_cast<float>(
      static_cast<std::uint32_t>((static_cast<std::uint64_t>(exponent) << kMantissaBits) + mantissa));
}

}  // namespace

template <class Count>
void Histogram::add(Row& row, std::span<const Count> counts) {
  // A row is never finer than what is added to it: the top exponent has been raised before.
  const std::size_t group = counts.size() / row.counts.size();
  if (group == 1) {
    for (std::size_t b = 0; b < counts.size(); ++b) row.counts[b] += counts[b];
    return;
  }
  for (std::size_t b = 0; b < row.counts.size(); ++b) {
    row.counts[b] = std::accumulate(counts.begin() + b * group, counts.begin() + (b + 1) * group, row.counts[b]);
  }
}

Histogram::Row& Histogram::row(bool negative, int exponent) {
  const auto [it, added] = rows_.try_emplace(exponent + (negative ? kNegative : 0));
  if (added) {
    it->second.fine = is_fine(exponent);
    it->second.counts.resize(it->second.fine ? kFineBins : kCoarseBins);
  }
  return it->second;
}

void Histogram::raise_top(int exponent) {
  if (exponent <= top_) return;
  top_ = exponent;
  for (auto& [key, row] : rows_) {
    if (!row.fine || is_fine(key % kNegative)) continue;
    Row coarse{false, std::vector<std::uint64_t>(kCoarseBins)};
    add<std::uint64_t>(coarse, row.counts);
    row = std::move(coarse);
  }
}

void Histogram::add_row(bool negative, int exponent, std::span<const std::uint32_t, kFineBins> counts) {
  if (std::all_of(counts.begin(), counts.end(), [](auto c) { return c == 0; })) return;
  raise_top(exponent);
  add<std::uint32_t>(row(negative, exponent), counts);
}

void Histogram::merge(const Histogram& other) {
  raise_top(other.top_);
  for (const auto& [key, theirs] : other.rows_) {
    add<std::uint64_t>(row(key >= kNegative, key % kNegative), theirs.counts);
  }
}

std::uint64_t Histogram::total() const {
  std::uint64_t sum = 0;
  for (const auto& [key, row] : rows_) sum = std::accumulate(row.counts.begin(), row.counts.end(), sum);
  return sum;
}

std::vector<Bin> Histogram::bins() const {
  std::vector<Bin> negative, positive;
  for (const auto& [key, row] : rows_) {
    const int bits = row.fine ? kFineBits : kCoarseBits;
    auto& side = key >= kNegative ? negative : positive;
    for (std::size_t b = 0; b < row.counts.size(); ++b) {
      if (row.counts[b] == 0) continue;
      side.push_back(
          {edge(key % kNegative, b, bits), edge(key % kNegative, b + 1, bits), key >= kNegative, row.counts[b]});
    }
  }
  std::reverse(negative.begin(), negative.end());
  negative.insert(negative.end(), positive.begin(), positive.end());
  return negative;
}

std::size_t Histogram::memory_bytes() const {
  std::size_t bytes = sizeof(*this);
  constexpr std::size_t kNode = 4 * sizeof(void*) + sizeof(decltype(rows_)::value_type);
  for (const auto& [key, row] : rows_) bytes += kNode + row.counts.size() * sizeof(std::uint64_t);
  return bytes;
}

void HistogramScratch::count(std::span<const float> values, Histogram& histogram) {
  tables_.resize(2 * kRows * kBins);
  std::uint32_t* const even = tables_.data();
  std::uint32_t* const odd = tables_.data() + kRows * kBins;
  const auto key = [](float v) { return std::bit_cast<std::uint32_t>(v) >> (kMantissaBits - Histogram::kFineBits); };
  std::size_t i = 0;
  for (; i + 1 < values.size(); i += 2) {
    const std::uint32_t a = key(values[i]);
    const std::uint32_t b = key(values[i + 1]);
    ++even[a];
    ++odd[b];
    touched_[a / kBins] = 1;
    touched_[b / kBins] = 1;
  }
  if (i < values.size()) {
    ++even[key(values[i])];
    touched_[key(values[i]) / kBins] = 1;
  }
  // -0 is 0: its count moves to the positive side, with the denormals above -2^-134 that share its bin.
  if (touched_[kNegative] != 0) {
    even[0] += even[kNegative * kBins] + odd[kNegative * kBins];
    even[kNegative * kBins] = odd[kNegative * kBins] = 0;
    touched_[0] = 1;
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    if (touched_[r] == 0) continue;
    touched_[r] = 0;
    std::uint32_t* const row = even + r * kBins;
    std::uint32_t* const other = odd + r * kBins;
    for (std::size_t b = 0; b < kBins; ++b) row[b] += other[b];
    histogram.add_row(r >= kNegative, static_cast<int>(r % kNegative),
                      std::span<const std::uint32_t, kBins>(row, kBins));
    std::fill_n(row, kBins, 0U);
    std::fill_n(other, kBins, 0U);
  }
}

}  // namespace detent::calibration
