#include "planning/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "graph/segment.h"

namespace detent::planning {
namespace {

constexpr std::uint64_t kInfinite = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kSegment = 16 * kMiB;  // what a session is worth in bytes moved

// Finds the chain of segments that moves the fewest bytes, by the shortest way over the cuts.
class Planner {
 public:
  Planner(SegmentWalk& walk, std::vector<int> cuts, const Circumstances& circumstances, std::uint64_t samples,
          const Budget& budget)
      : walk_(walk),
        cuts_(std::move(cuts)),
        workers_(circumstances.workers),
        weights_stay_(circumstances.weights_stay),
        samples_(samples),
        budget_(budget) {
    cuts_.insert(cuts_.begin(), 0);
    cuts_.push_back(walk_.nodes());
  }

  /// The chosen cuts; nullopt when nothing fits into `memory`.
  std::optional<std::vector<int>> solve(std::uint64_t memory) {
    const std::size_t count = cuts_.size();
    // Nothing is cheaper than not to cut.
    if (fits(cost_of(0, walk_.nodes()), 0, walk_.nodes(), memory)) return std::vector<int>();
    std::vector<std::uint64_t> best(count, kInfinite);
    std::vector<std::size_t> from(count, 0);
    best[0] = 0;
    for (std::size_t a = 0; a + 1 < count; ++a) {
      if (best[a] == kInfinite) continue;
      extend(a, memory, [&](std::size_t b, std::uint64_t price) {
        if (best[a] + price < best[b]) {
          best[b] = best[a] + price;
          from[b] = a;
        }
      });
    }
    if (best.back() == kInfinite) return std::nullopt;
    std::vector<int> chosen;
    for (std::size_t b = from[count - 1]; b != 0; b = from[b]) chosen.push_back(cuts_[b]);
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }

  /// What a chain takes.
  SweepPlan describe(std::vector<int> chosen, std::uint64_t memory) {
    SweepPlan plan;
    std::vector<int> ends = chosen;
    ends.push_back(walk_.nodes());
    int begin = 0;
    std::uint64_t peak = 0, resident = 0, kept = 0, both = 0;
    for (const int end : ends) {
      const SegmentCost cost = cost_of(begin, end);
      const bool only = chosen.empty();
      const std::uint64_t weights = fits(cost, begin, end, memory) ? cost.weights : 0;
      peak = std::max(peak, least_memory_of(cost, begin, end) + weights);
      resident = std::max(resident, cost.anonymous + weights);
      if (!only) plan.spool_traffic += traffic(cost, begin);
      if (!only) kept = std::max(kept, kept_by(cost, begin, end));
      both = std::max(both, bytes_spooled_at(begin) + bytes_spooled_at(end));
      begin = end;
    }
    const std::uint64_t counted = peak - resident;  // for buffers, whatever segment runs
    const std::uint64_t room = less(memory, peak);
    plan.memory = peak;
    plan.spool = chosen.empty() ? split_budget(room, 0) : share(room, counted, kept, both);
    if (chosen.empty()) return plan;  // it has a spool only where an earlier process has cut
    const bool on_disk = plan.spool.records < kept;
    plan.disk = on_disk ? less(both, plan.spool.records) : 0;
    plan.memory += plan.spool.buffers - counted + std::min(kept, plan.spool.records);
    plan.cuts = std::move(chosen);
    plan.spool_bytes = kept;
    return plan;
  }

 private:
  static std::uint64_t less(std::uint64_t from, std::uint64_t what) { return from - std::min(from, what); }

  // Buffers take of the room only where tensors go to disk, and not what disk they would need in its place.
  SpoolMemory share(std::uint64_t room, std::uint64_t counted, std::uint64_t kept, std::uint64_t both) const {
    if (budget_.all_in_memory) return {room, counted};
    if (!budget_.all_on_disk && kept <= room) return {room, counted};
    SpoolMemory shares = split_budget(room, counted);
    const std::uint64_t most = std::max(counted, std::min(kept, counted + less(budget_.disk + room, both)));
    if (shares.buffers > most) shares = {room + counted - most, most};
    if (budget_.all_on_disk) shares.records = 0;
    return shares;
  }

  std::uint64_t bytes_spooled_at(int cut) const { return cut == 0 ? 0 : walk_.bytes_spooled_at(cut) * samples_; }
  std::uint64_t buffers(const SegmentCost& cost) const {
    return budget_.all_in_memory ? 0 : spool_buffers(cost.read_bytes + cost.write_bytes);
  }
  bool is_whole(int begin, int end) const { return begin == 0 && end == walk_.nodes(); }

  // What a segment cannot do without.
  std::uint64_t least_memory_of(const SegmentCost& cost, int begin, int end) const {
    return cost.anonymous + (is_whole(begin, end) ? 0 : buffers(cost));
  }
  // Whether its weights stay resident from sample to sample.
  bool fits(const SegmentCost& cost, int begin, int end, std::uint64_t memory) const {
    return least_memory_of(cost, begin, end) + cost.weights <= memory;
  }
  std::uint64_t traffic(const SegmentCost& cost, int begin) const {
    return samples_ * (cost.write_bytes + (begin == 0 ? 0 : cost.read_bytes));
  }

  // What waits at the most while the segment runs, given back and handed on sample by sample.
  std::uint64_t kept_by(const SegmentCost& cost, int begin, int end) const {
    return std::max(bytes_spooled_at(begin), bytes_spooled_at(end)) + workers_ * (cost.read_bytes + cost.write_bytes);
  }

  // Whether the tensors spooled before and after the segment have room while it runs.
  bool has_room_for_spooled(const SegmentCost& cost, int begin, int end, std::uint64_t memory) const {
    if (is_whole(begin, end)) return true;
    const std::uint64_t both = bytes_spooled_at(begin) + bytes_spooled_at(end);
    const std::uint64_t kept = kept_by(cost, begin, end);
    const std::uint64_t room = memory - std::min(memory, least_memory_of(cost, begin, end) + cost.weights);
    if (budget_.all_in_memory) return kept <= room;
    if (budget_.all_on_disk) return both <= budget_.disk;
    return kept <= room || both <= budget_.disk + room;
  }

  template <class Found>
  void extend(std::size_t a, std::uint64_t memory, const Found& found) {
    walk_.begin(cuts_[a]);
    int node = cuts_[a];
    for (std::size_t b = a + 1; b < cuts_.size(); ++b) {
      SegmentCost cost;
      for (; node < cuts_[b]; ++node) cost = walk_.step();
      // Memory only falls again where a segment hands on less than it holds, which activations alone can do.
      if (cost.anonymous > memory + memory / 2) break;
      if (least_memory_of(cost, cuts_[a], cuts_[b]) > memory || !has_room_for_spooled(cost, cuts_[a], cuts_[b], memory))
        continue;
      const bool stay = fits(cost, cuts_[a], cuts_[b], memory);
      if (weights_stay_ && !stay) continue;
      const std::uint64_t reads = stay ? 1 : samples_;
      const bool whole = is_whole(cuts_[a], cuts_[b]);
      found(b, kSegment + (whole ? 0 : traffic(cost, cuts_[a])) + cost.weights * reads);
    }
  }

  SegmentCost cost_of(int begin, int end) {
    walk_.begin(begin);
    SegmentCost cost;
    for (int node = begin; node < end; ++node) cost = walk_.step();
    return cost;
  }

  SegmentWalk& walk_;
  std::vector<int> cuts_;
  std::uint64_t workers_;
  bool weights_stay_;
  std::uint64_t samples_;
  const Budget& budget_;
};

// More cuts, evenly spread, each where little waits.
std::vector<int> refine(const SegmentWalk& walk, const std::vector<int>& possible, std::vector<int> chosen,
                        std::size_t segments) {
  segments = std::min(segments, static_cast<std::size_t>(walk.nodes()) + 1);  // more cannot be told apart
  if (chosen.size() + 1 >= segments) return chosen;
  const double width = static_cast<double>(walk.nodes()) / static_cast<double>(segments);
  for (std::size_t i = 1; i < segments; ++i) {
    const double target = width * static_cast<double>(i);
    const auto low = std::lower_bound(possible.begin(), possible.end(), static_cast<int>(target - width / 2) + 1);
    const auto high = std::upper_bound(low, possible.end(), static_cast<int>(target + width / 2));
    if (low == high) continue;
    chosen.push_back(*std::min_element(
        low, high, [&](int a, int b) { return walk.bytes_spooled_at(a) < walk.bytes_spooled_at(b); }));
  }
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

std::uint64_t whole_mib(std::uint64_t bytes) { return (bytes + kMiB - 1) / kMiB * kMiB; }

// The smallest memory budget for which there is a plan, by bisection; 0: none, whatever the memory.
std::uint64_t smallest_memory(Planner& planner, std::uint64_t too_small) {
  std::uint64_t high = std::max(too_small, kMiB);
  do {
    if (high > (std::uint64_t{1} << 50)) return 0;
    high *= 2;
  } while (!planner.solve(high));
  std::uint64_t low = std::max<std::uint64_t>(too_small, high / 2);
  while (high - low > kMiB / 16) {
    const std::uint64_t middle = low + (high - low) / 2;
    (planner.solve(middle) ? high : low) = middle;
  }
  return whole_mib(high);
}

}  // namespace

SweepPlan plan_sweep(const onnx::Model& model, const graph::ValueTypes& types, const std::vector<std::string>& observed,
                     const Circumstances& circumstances, std::uint64_t samples, const Budget& budget) {
  const graph::Index index(model);
  auto walk = SegmentWalk::make(model, index, types, observed, circumstances);
  if (!walk) throw usage_error("memory cannot be planned: some shapes depend on values", "leave out --memory-budget");
  const auto possible = graph::harmless_cuts(model, index, types, {observed.begin(), observed.end()});
  Planner planner(*walk, possible, circumstances, samples, budget);
  auto chosen = planner.solve(budget.memory);
  if (!chosen) {
    Budget ample = budget;
    ample.disk = kInfinite / 4;
    Planner with_disk(*walk, possible, circumstances, samples, ample);
    const std::string where = fmt::format("model '{}'", model.path.string());
    if (auto plan = with_disk.solve(budget.memory)) {
      const auto needed = planner.describe(std::move(*plan), budget.memory).disk;
      throw resource_error(
          fmt::format("{}: calibration with {} of memory needs {} of disk, but only {} are allowed", where,
                      format_size(budget.memory), format_size(whole_mib(needed)), format_size(budget.disk)),
          fmt::format("give --disk-budget {}MiB or more --memory-budget", whole_mib(needed) / kMiB));
    }
    const std::uint64_t memory = smallest_memory(planner, budget.memory);
    throw resource_error(fmt::format("{}: calibration cannot keep to {} of memory", where, format_size(budget.memory)),
                         fmt::format("the smallest --memory-budget that works is {}MiB", memory / kMiB));
  }
  auto plan = planner.describe(refine(*walk, possible, std::move(*chosen), budget.segments), budget.memory);
  // Cuts that were asked for may take more than those that were chosen.
  const bool waits_elsewhere = budget.all_in_memory && plan.spool_bytes > plan.spool.records;
  if (plan.memory > budget.memory || plan.disk > budget.disk || waits_elsewhere)
    throw resource_error(fmt::format("model '{}': calibration in {} segments does not keep to {} of memory, or not "
                                     "to the disk budget or memory level",
                                     model.path.string(), plan.cuts.size() + 1, format_size(budget.memory)),
                         "give a smaller --set segments, or a larger budget");
  return plan;
}

SpoolMemory split_budget(std::uint64_t room, std::uint64_t counted) {
  const std::uint64_t more = std::min(kMostBuffers - std::min(kMostBuffers, counted), room / 4);
  return {room - more, counted + more};
}

namespace {

constexpr int kNever = -1;

// First come, first numbered.
template <class Key>
std::size_t number_of(std::unordered_map<Key, std::size_t>& numbers, const Key& key) {
  return numbers.emplace(key, numbers.size()).first->second;
}

}  // namespace

std::optional<SegmentWalk> SegmentWalk::make(const onnx::Model& model, const graph::Index& index,
                                             const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                             const Circumstances& circumstances) {
  auto lives = graph::lifetimes(model, index, types);
  if (!lives) return std::nullopt;
  SegmentWalk walk;
  walk.workers_ = circumstances.workers;
  walk.fixed_ = kProcess + statistics_bytes(circumstances) + circumstances.beside;
  const auto numbers = walk.add_values(index, types, *lives);
  walk.add_nodes(model, index, types, observed, *lives, numbers);
  walk.block_bytes_ = std::move(lives->bytes);
  walk.block_end_ = std::move(lives->end);
  walk.sum_border();
  walk.seen_value_.assign(walk.values_.size(), kNever);
  walk.seen_block_.assign(walk.block_bytes_.size(), kNever);
  walk.seen_weight_.assign(model.graph.initializers.size(), kNever);
  return walk;
}

SegmentWalk::Numbers SegmentWalk::add_values(const graph::Index& index, const graph::ValueTypes& types,
                                             const graph::Lifetimes& lives) {
  Numbers numbers;
  for (const auto& [name, block] : lives.block_of) {
    const std::size_t v = number_of(numbers, name);
    values_.resize(std::max(values_.size(), v + 1));
    const auto readers = index.consumers(name);
    values_[v] = {graph::static_bytes(types, name).value_or(0), index.producer(name),
                  readers.empty() ? kNever : readers.back(), block};
  }
  return numbers;
}

void SegmentWalk::add_nodes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                            const std::vector<std::string>& observed, const graph::Lifetimes& lives,
                            const Numbers& numbers) {
  const bool blocked = runs_in_blocks(model);
  const auto workspace = workspace_of(model, index, types, blocked);
  const std::unordered_set<std::string> taps(observed.begin(), observed.end());
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    Node out;
    auto reads = graph::captured_names(model, node);
    reads.insert(reads.end(), node.inputs().begin(), node.inputs().end());
    for (const auto& name : reads) {
      if (const int weight = index.initializer(name); weight != graph::kNone) {
        const auto& tensor = model.graph.initializers[static_cast<std::size_t>(weight)];
        out.weights.emplace_back(static_cast<std::size_t>(weight), resident_bytes(model, index, types, tensor));
      } else if (const auto found = numbers.find(name); found != numbers.end()) {
        out.reads.push_back(found->second);
      }
    }
    for (const auto& name : node.outputs()) {
      if (const auto found = numbers.find(name); found != numbers.end()) out.makes.push_back(found->second);
      out.taps += taps.contains(name) ? 1 : 0;
    }
    const bool kept = !out.reads.empty() && lives.end[values_[out.reads.front()].block] != n;
    out.workspace = workspace(node, kept);
    out.copies = blocked ? convolution_weights(model, index, node) : 0;
    nodes_.push_back(std::move(out));
  }
}

// The bytes that are spooled at each cut, and the values that are no longer needed after each node.
void SegmentWalk::sum_border() {
  std::vector<std::uint64_t> born(nodes_.size() + 2, 0), gone(nodes_.size() + 2, 0);
  dying_.resize(nodes_.size());
  for (std::size_t v = 0; v < values_.size(); ++v) {
    const auto& value = values_[v];
    if (value.last == kNever) continue;
    born[static_cast<std::size_t>(value.producer + 1)] += value.bytes;
    gone[static_cast<std::size_t>(value.last + 1)] += value.bytes;
    if (value.producer >= 0) dying_[static_cast<std::size_t>(value.last)].push_back(v);
  }
  std::uint64_t waiting = 0;
  for (std::size_t cut = 0; cut <= nodes_.size(); ++cut) {
    waiting += born[cut] - gone[cut];
    waiting_.push_back(waiting);
  }
}

void SegmentWalk::begin(int node) {
  first_ = next_ = node;
  ++generation_;
  cost_ = {};
  alive_ = peak_ = session_ = copies_ = 0;
}

void SegmentWalk::enter(const Node& node) {
  for (const auto v : node.reads) {
    const auto& value = values_[v];
    if (value.producer >= first_ || std::exchange(seen_value_[v], generation_) == generation_) continue;
    cost_.read_bytes += value.bytes;
  }
  for (const auto& [weight, bytes] : node.weights) {
    if (std::exchange(seen_weight_[weight], generation_) != generation_) cost_.weights += bytes;
  }
  for (const auto v : node.makes) {
    const auto& value = values_[v];
    if (value.last != kNever) cost_.write_bytes += value.bytes;
    // A value that shares the memory of one from before the segment has memory of its own here.
    if (std::exchange(seen_block_[value.block], generation_) != generation_) alive_ += block_bytes_[value.block];
  }
  session_ += kSessionNode * (1 + node.taps);
  copies_ += node.copies;
  peak_ = std::max(peak_, alive_ + node.workspace);
}

SegmentCost SegmentWalk::step() {
  const auto n = static_cast<std::size_t>(next_++);
  enter(nodes_[n]);
  for (const auto v : dying_[n]) {
    const auto& value = values_[v];
    if (value.producer >= first_) cost_.write_bytes -= value.bytes;  // nobody behind the segment needs it
  }
  const auto free_block = [&](std::size_t v) {
    const std::size_t block = values_[v].block;
    if (block_end_[block] != n || seen_block_[block] != generation_) return;
    alive_ -= block_bytes_[block];
    seen_block_[block] = kNever;
  };
  for (const auto v : nodes_[n].reads) free_block(v);
  for (const auto v : nodes_[n].makes) free_block(v);
  SegmentCost cost = cost_;
  cost.anonymous = fixed_ + session_ + copies_ + workers_ * (cost.read_bytes + peak_);
  return cost;
}

std::optional<SideBySide> memory_side_by_side(const onnx::Model& model, const graph::ValueTypes& types,
                                              std::span<const StagesOfForm> forms) {
  const graph::Index index(model);
  auto walk = SegmentWalk::make(model, index, types, {}, {.histograms = false});
  if (!walk) return std::nullopt;
  const std::size_t stages = forms.empty() ? 0 : forms.front().size();
  SideBySide memory{std::vector<std::uint64_t>(stages, kProcess)};
  std::vector<std::uint64_t> on_their_way(stages);
  for (const auto& form : forms) {
    for (std::size_t i = 0; i < stages; ++i) {
      if (form[i].begin >= form[i].end) continue;
      walk->begin(form[i].begin);
      SegmentCost cost;
      for (int node = form[i].begin; node < form[i].end; ++node) cost = walk->step();
      memory.stages[i] += cost.memory() - kProcess;
      on_their_way[i] += cost.read_bytes + cost.write_bytes;
    }
  }
  // Buffers are kept from one stage to the next.
  const std::uint64_t most = stages == 0 ? 0 : *std::max_element(on_their_way.begin(), on_their_way.end());
  memory.buffers = spool_buffers(most);
  for (auto& bytes : memory.stages) bytes += memory.buffers;
  return memory;
}

}  // namespace detent::planning
