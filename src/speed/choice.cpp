#include "speed/choice.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "graph/execution.h"
#include "graph/traits.h"
#include "quantization/placement/value_kinds.h"

namespace detent::speed {
namespace {

// The source's side computes on integers.
constexpr std::size_t kIntegers = 0, kFloat = 1, kFirst = 2;
// What tables are worth at least, which compute nothing.
constexpr double kWorthOfTables = 0.1;
// A gain smaller than this share of the time in float is less than what times of single operators can tell.
constexpr double kLeastGain = 0.07;
// Times are told in whole microseconds, and calling the model takes more than these: what all its operators take in
// float does not decide then, if there are weights that the scales and conversions around them do not outweigh.
constexpr double kTooShort = 20e-6, kWorthBytes = 16 << 10;

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

class Choice {
 public:
  Choice(const TimedModel& subject, const std::vector<bool>& candidates, const TimesOf& times, const SpeedGoal& goal)
      : subject_(subject),
        nodes_(subject.model.graph.nodes),
        candidates_(candidates),
        times_(nodes_.size()),
        margin_(goal.optimize_for == OptimizeFor::accuracy ? kAccuracyMargin : 1),
        size_counts_(goal.optimize_for != OptimizeFor::accuracy),
        size_worth_(goal.size_worth / 100),
        cut_(kFirst + nodes_.size() + count_values()) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) times_[n] = candidates_[n] ? times(n) : nullptr;
  }

  FasterInFloat run() {
    make_network();
    const bool size_decides = size_counts_ && in_float_ <= kTooShort && all_weights_ >= kWorthBytes;
    const auto on_integers = cut_.source_side(kIntegers, kFloat);
    const bool worth_it = static_cast<double>(cut_.cost()) <= (1 - kLeastGain) * static_cast<double>(all_in_float_);
    auto chosen = candidates_;
    FasterInFloat found;
    for (std::size_t n = 0; n < nodes_.size() && !size_decides; ++n) {
      chosen[n] = candidates_[n] && on_integers[vertex(n)] && (worth_it || pays_alone(n));
      if (candidates_[n] && !chosen[n]) found.nodes.push_back(n);
    }
    found.size_decides = size_decides;
    found.seconds = seconds_of(chosen);
    found.seconds_on_integers = seconds_of(candidates_);
    found.seconds_in_float = seconds_of(std::vector<bool>(nodes_.size()));
    found.added = added_to(chosen);
    return found;
  }

  std::vector<double> added(const std::vector<std::size_t>& in_float) {
    make_network();
    auto chosen = candidates_;
    for (const auto n : in_float) chosen[n] = false;
    return added_to(std::move(chosen));
  }

 private:
  void make_network() {
    find_rates();
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (candidates_[n]) add_node(n);
      if (candidates_[n] && keeps_layout(n)) tie_to_producer(n);
    }
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      for (const auto& value : nodes_[n].outputs()) add_value(value, vertex_of(static_cast<int>(n)));
    }
    for (const auto& input : subject_.model.graph.inputs) add_value(input.name, kFloat);
  }

  std::vector<double> added_to(std::vector<bool> chosen) const {
    std::vector<double> added(nodes_.size());
    const double before = seconds_of(chosen);
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!chosen[n] || times_[n] == nullptr) continue;
      chosen[n] = false;
      added[n] = seconds_of(chosen) - before;
      chosen[n] = true;
    }
    return added;
  }

  /// What it takes with these nodes on integers.
  double seconds_of(const std::vector<bool>& on_integers) const {
    std::vector<bool> side(kFirst + nodes_.size() + values_.size());
    side[kIntegers] = true;
    double worth = 0;  // is in the cut's cost, and no time
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      side[vertex(n)] = on_integers[n];
      worth += candidates_[n] && !on_integers[n] ? worth_of_size(n) : 0;
    }
    for (std::size_t v = 0; v < values_.size(); ++v) {
      side[kFirst + nodes_.size() + v] =
          std::any_of(values_[v].begin(), values_[v].end(), [&](std::size_t reader) { return side[reader]; });
    }
    return static_cast<double>(cut_.cost_of(side)) * 1e-9 - worth;
  }

  static std::size_t vertex(std::size_t node) { return kFirst + node; }
  bool is_candidate(int node) const { return node != graph::kNone && candidates_[static_cast<std::size_t>(node)]; }
  std::size_t vertex_of(int node) const { return is_candidate(node) ? vertex(static_cast<std::size_t>(node)) : kFloat; }

  std::size_t count_values() const {
    std::size_t count = subject_.model.graph.inputs.size();
    for (const auto& node : nodes_) count += node.outputs().size();
    return count;
  }

  double elements(const std::string& value) const {
    const auto bytes = graph::static_bytes(subject_.types, value);
    return bytes ? static_cast<double>(*bytes) / sizeof(float) : 0;
  }

  bool is_float_activation(const std::string& value) const {
    return !value.empty() && subject_.index.initializer(value) == graph::kNone &&
           graph::type_of(subject_.model, subject_.types, value) == onnx::DataType::float32;
  }

  double read_elements(std::size_t n) const {
    double sum = 0;
    for (const auto& value : nodes_[n].inputs()) sum += is_float_activation(value) ? elements(value) : 0;
    return sum;
  }

  double made_elements(std::size_t n) const {
    double sum = 0;
    for (const auto& value : nodes_[n].outputs()) sum += elements(value);
    return sum;
  }

  // What conversions take by element, for values whose own conversion was not timed.
  void find_rates() {
    double quantize = 0, read = 0, dequantize = 0, made = 0;
    double timed = 0, others = 0;  // multiplications
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (candidates_[n]) all_weights_ += weight_bytes(subject_, n);
      const auto* times = times_[n];
      const auto work = graph::work_of(subject_.model, subject_.index, subject_.types, nodes_[n]);
      (times != nullptr ? timed : others) += work ? static_cast<double>(work->macs) : 0;
      if (times == nullptr) continue;
      if (!quantization::is_table(nodes_[n], subject_.index)) in_float_ += times->in_float;
      quantize += times->quantize;
      read += read_elements(n);
      dequantize += times->dequantize;
      made += made_elements(n);
    }
    // Recurrent layers and other products that were not timed take time as well.
    if (timed > 0) in_float_ *= 1 + others / timed;
    if (read > 0) quantize_rate_ = quantize / read;
    if (made > 0) dequantize_rate_ = dequantize / made;
  }

  // Fast only in the layout that the convolution before it leaves behind, which is another one in each form.
  bool keeps_layout(std::size_t n) const {
    return graph::traits_of(nodes_[n]).counting == graph::Counting::per_window || nodes_[n].is("Resize");
  }

  void tie_to_producer(std::size_t n) {
    const std::size_t at = vertex_of(subject_.index.producer(nodes_[n].inputs().front()));
    cut_.add(at, vertex(n), MinCut::kNever);
    cut_.add(vertex(n), at, MinCut::kNever);
  }

  // The blocked layout of float convolutions ends where neither a candidate nor its like goes on with it.
  bool reads_others(std::size_t n) const { return !is_candidate(subject_.index.producer(nodes_[n].inputs().front())); }

  bool is_read_by_others(std::size_t n) const {
    const auto readers = subject_.index.consumers(nodes_[n].outputs().front());
    return std::any_of(readers.begin(), readers.end(), [&](int reader) { return !is_candidate(reader); });
  }

  double worth_of_size(std::size_t n) const {
    const bool is_table = quantization::is_table(nodes_[n], subject_.index);
    const double worth = is_table ? std::max(kWorthOfTables, size_worth_) : size_worth_;
    return size_counts_ && all_weights_ > 0 ? worth * in_float_ * weight_bytes(subject_, n) / all_weights_ : 0;
  }

  // A table computes nothing: whether its rows, made float for each reader, take less than its bytes are worth.
  bool pays_alone(std::size_t n) const {
    if (!quantization::is_table(nodes_[n], subject_.index)) return false;
    const auto& value = nodes_[n].outputs().front();
    const auto readers = static_cast<double>(subject_.index.consumers(value).size());
    const double kernels = times_[n] != nullptr ? times_[n]->in_integers - times_[n]->in_float : 0;
    return worth_of_size(n) > kernels + readers * dequantize_time(value, vertex(n));
  }

  void add_node(std::size_t n) {
    const auto* times = times_[n];
    const double worth = worth_of_size(n);
    cut_.add(kIntegers, vertex(n), nanoseconds(worth));
    all_in_float_ += nanoseconds(worth);
    if (times == nullptr) return;
    double in_float = times->in_float;
    if (reads_others(n)) in_float += times->into_blocks;
    if (is_read_by_others(n)) in_float += times->out_of_blocks;
    cut_.add(kIntegers, vertex(n), nanoseconds(in_float));
    all_in_float_ += nanoseconds(in_float);
    cut_.add(vertex(n), kFloat, nanoseconds(margin_ * times->in_integers));
  }

  double dequantize_time(const std::string& value, std::size_t producer) const {
    if (producer == kFloat) return 0;
    const std::size_t n = producer - kFirst;
    if (graph::is_matrix_product(nodes_[n])) return 0;  // has a kernel that makes float of integers
    const auto* times = times_[n];
    const double made = made_elements(n);
    return times != nullptr && made > 0 ? times->dequantize * elements(value) / made
                                        : dequantize_rate_ * elements(value);
  }

  double quantize_time(const std::string& value, std::size_t n) const {
    const auto* times = times_[n];
    const double read = read_elements(n);
    return times != nullptr && read > 0 ? times->quantize * elements(value) / read : quantize_rate_ * elements(value);
  }

  void add_value(const std::string& value, std::size_t producer) {
    if (!is_float_activation(value)) return;
    const auto readers = subject_.index.consumers(value);
    const auto dequantize = nanoseconds(dequantize_time(value, producer));
    const std::size_t converted = kFirst + nodes_.size() + values_.size();  // on integers where some reader is
    auto& on_integers = values_.emplace_back();
    const auto* made_by = producer == kFloat ? nullptr : times_[producer - kFirst];
    const double out_of_blocks = made_by != nullptr ? made_by->out_of_blocks : 0;
    double quantize = 0;
    for (const int reader : readers) {
      const auto n = static_cast<std::size_t>(reader);
      const std::size_t at = vertex_of(reader);
      cut_.add(producer, at, dequantize + (times_[n] != nullptr ? nanoseconds(times_[n]->into_blocks) : 0));
      if (at == kFloat) continue;
      cut_.add(at, converted, MinCut::kNever);
      on_integers.push_back(at);
      quantize = std::max(quantize, quantize_time(value, n));
    }
    if (subject_.index.is_output(value)) cut_.add(producer, kFloat, dequantize);
    cut_.add(converted, producer, nanoseconds(quantize + out_of_blocks));
  }

  const TimedModel& subject_;
  const std::vector<onnx::Node>& nodes_;
  const std::vector<bool>& candidates_;
  std::vector<const KernelTimes*> times_;  // null: stays in float, or was not timed
  double margin_;
  bool size_counts_;
  double size_worth_;
  MinCut cut_;
  std::vector<std::vector<std::size_t>> values_ = {};  // vertices of the readers that could take integers
  std::int64_t all_in_float_ = 0;
  double in_float_ = 0, all_weights_ = 0, quantize_rate_ = 0, dequantize_rate_ = 0;
};

}  // namespace

double weight_bytes(const TimedModel& subject, std::size_t node) {
  double sum = 0;
  for (const auto& value : subject.model.graph.nodes[node].inputs()) {
    const int constant = subject.index.initializer(value);
    if (constant != graph::kNone)
      sum += static_cast<double>(subject.model.graph.initializers[static_cast<std::size_t>(constant)].data.size());
  }
  return sum;
}

FasterInFloat faster_in_float(const TimedModel& subject, const std::vector<bool>& candidates, const TimesOf& times,
                              const SpeedGoal& goal) {
  return Choice(subject, candidates, times, goal).run();
}

std::vector<double> added_in_float(const TimedModel& subject, const std::vector<bool>& candidates,
                                   const std::vector<std::size_t>& in_float, const TimesOf& times) {
  return Choice(subject, candidates, times, {}).added(in_float);
}

namespace {

constexpr std::size_t kUnreached = std::numeric_limits<std::size_t>::max();

}  // namespace

void MinCut::add(std::size_t from, std::size_t to, std::int64_t cost) {
  if (cost <= 0 || from == to) return;
  arcs_of_[from].push_back(arcs_.size());
  arcs_.push_back({to, cost});
  arcs_of_[to].push_back(arcs_.size());
  arcs_.push_back({from, 0});
}

std::vector<bool> MinCut::source_side(std::size_t source, std::size_t sink) {
  while (measure_distances(source, sink)) {
    next_.assign(arcs_of_.size(), 0);
    while (const auto flow = push(source, sink)) cost_ += flow;
  }
  auto side = reaches(sink);
  side.flip();
  return side;
}

std::int64_t MinCut::cost_of(const std::vector<bool>& side) const {
  std::int64_t sum = 0;
  for (std::size_t a = 0; a < arcs_.size(); a += 2) {
    const auto& back = arcs_[a + 1];
    const auto cost = arcs_[a].left + back.left;  // what can still flow, and what does
    if (side[back.to] && !side[arcs_[a].to] && cost < kNever) sum += cost;
  }
  return sum;
}

// Vertices from which more could flow to the sink.
std::vector<bool> MinCut::reaches(std::size_t sink) const {
  std::vector<bool> found(arcs_of_.size());
  found[sink] = true;
  std::vector<std::size_t> queue{sink};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const auto a : arcs_of_[queue[i]]) {
      const auto from = arcs_[a].to;  // the other end of the arc that comes in
      if (arcs_[a ^ 1U].left == 0 || found[from]) continue;
      found[from] = true;
      queue.push_back(from);
    }
  }
  return found;
}

bool MinCut::measure_distances(std::size_t source, std::size_t sink) {
  distance_.assign(arcs_of_.size(), kUnreached);
  distance_[source] = 0;
  std::vector<std::size_t> queue{source};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const auto a : arcs_of_[queue[i]]) {
      const auto& arc = arcs_[a];
      if (arc.left == 0 || distance_[arc.to] != kUnreached) continue;
      distance_[arc.to] = distance_[queue[i]] + 1;
      queue.push_back(arc.to);
    }
  }
  return distance_[sink] != kUnreached;
}

// One path of growing distances, without recursion: a model may be a chain of many thousand nodes.
std::int64_t MinCut::push(std::size_t source, std::size_t sink) {
  std::vector<std::size_t> path;
  for (std::size_t at = source; at != sink;) {
    bool forward = false;
    for (auto& i = next_[at]; i < arcs_of_[at].size(); ++i) {
      const auto& arc = arcs_[arcs_of_[at][i]];
      if (arc.left == 0 || distance_[arc.to] != distance_[at] + 1) continue;
      path.push_back(arcs_of_[at][i]);
      at = arc.to;
      forward = true;
      break;
    }
    if (forward) continue;
    if (path.empty()) return 0;
    at = arcs_[path.back() ^ 1U].to;
    ++next_[at];
    path.pop_back();
  }
  std::int64_t flow = kNever;
  for (const auto a : path) flow = std::min(flow, arcs_[a].left);
  for (const auto a : path) {
    arcs_[a].left -= flow;
    arcs_[a ^ 1U].left += flow;
  }
  return flow;
}

}  // namespace detent::speed
