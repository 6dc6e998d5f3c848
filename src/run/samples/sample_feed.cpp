#include "run/samples/sample_feed.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "exec/emit.h"
#include "graph/constants.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "run/comparison/pairing.h"
#include "run/files/run_directory.h"
#include "run/samples/samples.h"

namespace detent::run {

Fingerprint SampleFeed::read(std::optional<std::size_t> count) {
  Fingerprint data;
  while (!count || origins_.size() < *count) {
    const auto sample = source_.next();
    if (!sample) break;
    data += fingerprint_of(*sample);
    origins_.push_back(sample->origin);
  }
  return data;
}

void SampleFeed::start_first(std::size_t skipped) {
  source_.rewind();
  for (next_ = 0; next_ < skipped; ++next_) source_.next();
  end_.reset();
}

void SampleFeed::start_later(std::size_t first, std::size_t end) {
  next_ = first;
  end_ = end;
}

std::optional<FedSample> SampleFeed::next() {
  if (end_) {
    if (next_ == *end_) return std::nullopt;
    const std::size_t number = next_++;
    return FedSample{number, origins_.at(number), std::nullopt};
  }
  const std::lock_guard lock(source_mutex_);
  auto sample = source_.next();
  if (!sample) return std::nullopt;
  if (origins_.size() == next_) origins_.push_back(sample->origin);
  std::string origin = sample->origin;
  return FedSample{next_++, std::move(origin), std::move(sample)};
}

std::vector<data::Array> SampleFeed::inputs_of(std::size_t number) {
  const std::lock_guard lock(source_mutex_);
  return data::sample_inputs(source_, number);
}

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

const std::deque<ContentOrderedSamples::Place>& ContentOrderedSamples::order() const {
  if (!order_.empty()) return order_;
  bytes_.clear();
  inner_.rewind();
  for (std::size_t at = 0; options_.most == 0 || at < options_.most; ++at) {
    auto sample = inner_.next();
    if (!sample) break;
    const auto units = units_of(std::move(*sample));
    bytes_.push_back(units.empty() ? 0 : bytes_of(units.front().inputs));
    for (std::size_t row = 0; row < units.size(); ++row)
      order_.push_back({fingerprint_of(units[row]), static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(row)});
  }
  std::sort(order_.begin(), order_.end(), [](const Place& a, const Place& b) {
    return std::tie(a.content.high, a.content.low, a.sample, a.row) <
           std::tie(b.content.high, b.content.low, b.sample, b.row);
  });
  return order_;
}

// The next samples, as many as may be held, in one pass over the inner source.
void ContentOrderedSamples::read_ahead() {
  ahead_.clear();
  std::map<std::size_t, std::vector<std::size_t>> wanted;  // positions here, by sample of the inner source
  std::uint64_t bytes = 0;
  for (std::size_t at = next_; at < order_.size(); ++at) {
    bytes += bytes_.at(order_[at].sample);
    if (at > next_ && bytes > options_.ahead) break;
    wanted[order_[at].sample].push_back(at);
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

namespace {

// What the weights of a channel make of the largest input, as a multiple of its bias or of 1, is about 1 to 20 in
// trained models; far from that, the input was scaled otherwise in training.
constexpr double kFarAbove = 200, kFarBelow = 0.1;
constexpr double kBytes = 64, kShares = 1.5;  // above: pixels of 0 to 255, below: of 0 to 1, with or without their mean

// Of the channels of a convolution that reads `value`, the median of that multiple.
std::optional<double> multiple_at(const onnx::Model& model, const graph::Index& index, const onnx::Node& node,
                                  const std::string& value, double largest) {
  if (!node.is("Conv") || node.inputs()[0] != value) return std::nullopt;
  const auto* weight = graph::float32_constant(model, index, node, graph::kWeightInput);
  const auto* bias = graph::float32_constant(model, index, node, 2);
  if (weight == nullptr || weight->dims.empty() || weight->dims[0] < 1) return std::nullopt;
  const auto channels = static_cast<std::size_t>(weight->dims[0]);
  const auto weights = graph::floats_of(*weight);
  const auto biases = bias == nullptr ? std::vector<float>(channels) : graph::floats_of(*bias);
  if (biases.size() != channels) return std::nullopt;
  std::vector<double> multiples;
  for (std::size_t c = 0; c < channels; ++c) {
    double sum = 0;
    const std::size_t each = weights.size() / channels;
    for (std::size_t i = 0; i < each; ++i) sum += std::abs(static_cast<double>(weights[c * each + i]));
    if (sum > 0) multiples.push_back(largest * sum / std::max(1.0, std::abs(static_cast<double>(biases[c]))));
  }
  if (multiples.empty()) return std::nullopt;
  std::nth_element(multiples.begin(), multiples.begin() + static_cast<std::ptrdiff_t>(multiples.size() / 2),
                   multiples.end());
  return multiples[multiples.size() / 2];
}

// An input, and what only moves its values or puts others around them.
std::vector<std::string> input_and_moved_copies(const onnx::Model& model, const graph::Index& index,
                                                const std::string& input) {
  using graph::Trait;
  std::vector<std::string> values{input};
  for (std::size_t v = 0; v < values.size(); ++v) {
    for (const int reader : index.consumers(std::string(values[v]))) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      const bool moves = graph::has_trait(node, Trait::renames) || graph::has_trait(node, Trait::rearranges) ||
                         node.is("Pad") || node.is("Cast");
      if (moves && node.inputs()[0] == values[v]) values.push_back(node.outputs()[0]);
    }
  }
  return values;
}

std::string note_on_input_scale(const onnx::Model& model, const graph::Index& index, const std::string& input,
                                const calibration::Summary& seen) {
  const float low = seen.extremes.lowest(), high = seen.extremes.highest();
  const double largest = std::max(std::abs(low), std::abs(high));
  for (const auto& value : input_and_moved_copies(model, index, input)) {
    for (const int reader : index.consumers(value)) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      const auto multiple = multiple_at(model, index, node, value, largest);
      if (!multiple) continue;
      const bool too_large = largest >= kBytes && *multiple > kFarAbove;
      const bool too_small = largest > 0 && largest <= kShares && *multiple < kFarBelow;
      if (!too_large && !too_small) continue;
      return fmt::format(
          "input '{}' reaches from {:.4g} to {:.4g}, and weights and bias of {} look like values that are "
          "far {}: are the samples scaled as the application scales them?",
          input, low, high, node.label(), too_large ? "smaller, as of 0 to 1" : "larger, as of 0 to 255");
    }
  }
  return {};
}

// Axis 0 of an embedding, as a rule.
std::optional<std::pair<std::string, std::int64_t>> table_of(const onnx::Model& model, const graph::Index& index,
                                                             const std::string& input) {
  for (const auto& value : input_and_moved_copies(model, index, input)) {
    for (const int reader : index.consumers(value)) {
      const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
      if (!node.is("Gather") || node.inputs()[1] != value) continue;
      const int at = index.initializer(node.inputs()[0]);
      if (at == graph::kNone) continue;
      const auto& table = model.graph.initializers[static_cast<std::size_t>(at)];
      const auto rank = static_cast<std::int64_t>(table.dims.size());
      const auto axis = node.int_or("axis", 0);
      if (axis >= -rank && axis < rank)
        return std::pair(table.name, table.dims[static_cast<std::size_t>(axis < 0 ? axis + rank : axis)]);
    }
  }
  return std::nullopt;
}

template <class T>
std::pair<std::int64_t, std::int64_t> ends_of(const data::Array& array) {
  std::pair<std::int64_t, std::int64_t> ends{std::numeric_limits<std::int64_t>::max(),
                                             std::numeric_limits<std::int64_t>::min()};
  for (std::size_t at = 0; at + sizeof(T) <= array.bytes.size(); at += sizeof(T)) {
    T value{};
    std::memcpy(&value, array.bytes.data() + at, sizeof value);
    ends = {std::min<std::int64_t>(ends.first, value), std::max<std::int64_t>(ends.second, value)};
  }
  return ends;
}

// The least and the largest of integers; nullopt: there are none.
std::optional<std::pair<std::int64_t, std::int64_t>> ends_of_integers(const data::Array& array) {
  if (array.bytes.empty()) return std::nullopt;
  if (array.type == onnx::DataType::int64) return ends_of<std::int64_t>(array);
  if (array.type == onnx::DataType::int32) return ends_of<std::int32_t>(array);
  return std::nullopt;
}

// What an array is everywhere. Few numbers may be alike by their nature.
std::optional<float> one_number(const data::Array& array) {
  constexpr std::size_t kMany = 64;
  if (array.type != onnx::DataType::float32 || array.bytes.size() < kMany * sizeof(float)) return std::nullopt;
  const auto* bytes = array.bytes.data();
  if (std::memcmp(bytes, bytes + sizeof(float), array.bytes.size() - sizeof(float)) != 0) return std::nullopt;
  float number = 0;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

// Bodies that no sample comes to have none either, whatever the samples hold.
bool lack_values(const onnx::Model& model, const graph::Index& index, const calibration::Statistics& statistics) {
  const auto is_in_body = [&](const std::string& value) {
    const int producer = index.producer(value);
    return producer != graph::kNone && model.graph.nodes[static_cast<std::size_t>(producer)].body() != 0;
  };
  const auto& tensors = statistics.tensors;
  return std::none_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.second.has_values(); }) &&
         std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) { return !is_in_body(tensor.first); });
}

}  // namespace

std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics) {
  const auto samples = statistics.samples, repeated = statistics.repeated;
  const graph::Index index(model);
  if (samples > 0 && lack_values(model, index, statistics))
    throw bad_input("the samples hold no values: an axis of their arrays has the length 0",
                    "save arrays with at least one row");
  std::vector<std::string> notes;
  if (repeated > 0 && repeated + 1 == samples) {
    notes.push_back(fmt::format("all {} samples are the same: one would do", samples));
  } else if (repeated > 0) {
    notes.push_back(
        fmt::format("{} of {} samples {} the same as another one", repeated, samples, repeated == 1 ? "is" : "are"));
  }
  for (const auto& input : model.graph.inputs) {
    const auto found = statistics.tensors.find(input.name);
    if (found == statistics.tensors.end() || !found->second.has_values()) continue;
    const auto& seen = found->second;
    if (seen.extremes.lowest() == seen.extremes.highest() && seen.count > 1) {
      notes.push_back(fmt::format("input '{}' is {:.4g} everywhere, in all samples: these ranges fit no other data",
                                  input.name, seen.extremes.lowest() + 0.0F));
    } else if (auto note = note_on_input_scale(model, index, input.name, seen); !note.empty()) {
      notes.push_back(std::move(note));
    }
  }
  return notes;
}

OddInputs::OddInputs(const onnx::Model& model) {
  const graph::Index index(model);
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) != graph::kNone) continue;
    auto& made = inputs_.emplace_back();
    made.name = input.name;
    if (const auto table = table_of(model, index, input.name)) std::tie(made.table, made.entries) = *table;
  }
}

void OddInputs::add(const data::Sample& sample) {
  ++samples_;
  for (std::size_t i = 0; i < std::min(inputs_.size(), sample.inputs.size()); ++i) {
    auto& input = inputs_[i];
    if (const auto number = one_number(sample.inputs[i])) {
      ++input.even;
      if (!input.number) input.number = number;
      input.differs = input.differs || input.number != number;
    }
    const auto ends = input.table.empty() ? std::nullopt : ends_of_integers(sample.inputs[i]);
    if (!ends || ends->first >= 0) continue;
    ++input.negative;
    input.least = std::min(input.least, ends->first);
  }
}

std::vector<std::string> OddInputs::notes() const {
  std::vector<std::string> notes;
  for (const auto& input : inputs_) {
    if (input.negative > 0)
      notes.push_back(fmt::format(
          "input '{}' holds negative numbers in {} of {} samples, such as {}; the table '{}' counts them from its "
          "end: are they meant as padding?",
          input.name, input.negative, samples_, input.least, input.table));
    if (input.differs && input.even == samples_)
      notes.push_back(
          fmt::format("input '{}' is one number everywhere in each of the {} samples: these ranges fit no "
                      "other data",
                      input.name, samples_));
  }
  return notes;
}

void OddInputs::refuse_beyond_tables(std::span<const data::Array> inputs, const std::string& origin) const {
  for (std::size_t i = 0; i < std::min(inputs_.size(), inputs.size()); ++i) {
    const auto& input = inputs_[i];
    const auto ends = input.table.empty() ? std::nullopt : ends_of_integers(inputs[i]);
    if (!ends || (ends->first >= -input.entries && ends->second < input.entries)) continue;
    throw bad_input(
        fmt::format("sample '{}': input '{}' holds {}, and '{}', in which it is looked up, has {} entries", origin,
                    input.name, ends->second < input.entries ? ends->first : ends->second, input.table, input.entries),
        "make the samples with the vocabulary or tokenizer of the model");
  }
}

}  // namespace detent::run
