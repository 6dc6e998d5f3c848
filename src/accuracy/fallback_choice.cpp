#include "accuracy/fallback_choice.h"

#include <algorithm>

namespace detent::accuracy {

double predicted_error(const quantization::Placement& placement, const MarkErrors& errors) {
  double sum = 0;
  for (const auto& mark : placement.marks) {
    const auto found = errors.find(mark.value);
    if (found != errors.end() && !mark.wide) sum += found->second;
  }
  return sum;
}

std::vector<FallbackChoice> choose_fallbacks(std::vector<Candidate> candidates, const MarkErrors& errors,
                                             const Place& place, const ChoiceLimits& limits) {
  // A product without multiplications to count still costs something.
  constexpr double kLeastMacs = 1e-4;
  std::vector<FallbackChoice> choices;
  std::vector<std::size_t> floats;
  const double whole = predicted_error(place({}), errors);
  double now = whole, macs = 0;
  while (!candidates.empty() && now > limits.error) {
    std::size_t best = candidates.size();
    double best_gain = 0, best_error = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (macs + candidates[i].macs > limits.macs) continue;
      floats.push_back(candidates[i].node);
      const double error = predicted_error(place(floats), errors);
      floats.pop_back();
      if (now - error < std::max(limits.worth_removing, limits.ratio * candidates[i].macs) * whole) continue;
      const double gain = (now - error) / std::max(candidates[i].macs, kLeastMacs);
      if (gain <= best_gain) continue;
      best = i;
      best_gain = gain;
      best_error = error;
    }
    if (best == candidates.size()) break;
    const auto& chosen = candidates[best];
    choices.push_back({chosen.node, chosen.macs, (now - best_error) / whole});
    floats.push_back(chosen.node);
    macs += chosen.macs;
    now = best_error;
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(best));
  }
  return choices;
}

}  // namespace detent::accuracy
