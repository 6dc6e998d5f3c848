#include "calibration/statistics.h"

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

}  // namespace detent::calibration
