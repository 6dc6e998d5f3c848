#include "exec/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"

namespace detent::exec {
namespace {

std::vector<std::string> names_of_inputs(const onnx::Model& model, const graph::Index& index) {
  std::vector<std::string> names;
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) == graph::kNone) names.push_back(input.name);
  }
  return names;
}

const data::Array& find(const std::unordered_map<std::string, data::Array>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) throw internal_error(fmt::format("value '{}' is missing in a segment", name));
  return found->second;
}

}  // namespace

Branch::Branch(const Runtime& runtime, const onnx::Model& model, const graph::ValueTypes& types,
               const std::vector<int>& cuts, store::Spool* spool, BranchOptions options)
    : runtime_(runtime),
      model_(model),
      types_(types),
      index_(model),
      chain_(graph::make_chain(model, index_, cuts)),
      spool_(spool),
      options_(std::move(options)),
      graph_inputs_(names_of_inputs(model, index_)) {
  if (!chain_.lanes.empty() && spool_ == nullptr) throw internal_error("a model was cut without a spool");
  for (const auto& lane : chain_.lanes) lanes_.push_back(spool_->open(options_.name + lane.name));
}

Tapped Branch::taps_of(const graph::Segment& segment) const {
  Tapped taps;
  const auto inside = [&](int node) { return node >= segment.begin && node < segment.end; };
  for (const auto& value : options_.taps) {
    const int producer = index_.producer(value);
    const auto readers = index_.consumers(value);
    const bool here = producer != graph::kNone                    ? inside(producer)
                      : index_.initializer(value) != graph::kNone ? std::any_of(readers.begin(), readers.end(), inside)
                                                                  : segment.begin == 0;
    if (here) taps.values.push_back(value);
  }
  std::copy_if(options_.readers.begin(), options_.readers.end(), std::back_inserter(taps.readers),
               [&](const auto& reader) { return inside(index_.producer(reader)); });
  return taps;
}

std::shared_ptr<Session> Branch::make_session(const graph::Segment& segment, const Tapped& taps,
                                              const std::vector<std::string>& outputs, const std::string& where) const {
  // A tap hides the shape of its tensor from the runtime, whose choice of kernels depends on what it knows: so it must
  // not know more where the tap stands in another segment.
  onnx::Model part =
      graph::segment_model(model_, index_, types_, segment, {options_.taps.begin(), options_.taps.end()}, ranks_only_);
  std::vector<std::string> all = outputs;
  if (segments() > 1 || !outputs.empty()) {
    std::unordered_set<std::string> seen(all.begin(), all.end());
    for (const auto& info : part.graph.outputs) {
      if (seen.insert(info.name).second) all.push_back(info.name);
    }
    // Inputs that are only observed or handed on still have to be inputs of the session.
    if (segment.begin == 0) part.graph.inputs = model_.graph.inputs;
  }
  if (!taps.empty()) graph::state_scan_ranks(part, types_);
  if (options_.batch_invariant) make_batch_invariant(part, types_);
  SessionOptions session = options_.session;
  session.keep_results = !outputs.empty();
  const EmitOptions emitted{taps.values, all, {}, taps.readers};
  // Of some graphs with bodies the runtime dies while it makes a session of them.
  const auto& nodes = part.graph.nodes;
  if (std::any_of(nodes.begin(), nodes.end(), [](const auto& n) { return !n.bodies().empty() || graph::has_body(n); }))
    (void)guarded_ports(runtime_, {.stop = session.stop})(part, emitted, session.tuning);
  return std::make_shared<Session>(runtime_, emit(part, emitted), where, session);
}

// The stage's, loaded once more where it was told of other shapes than the values have: these win.
std::shared_ptr<Session> Branch::session_for(Stage& stage, std::span<const data::Array> inputs) {
  const std::lock_guard lock(ranks_mutex_);
  if (stage.segment_ == 0) return stage.session_;
  const auto& ports = stage.session_->inputs();
  bool wrong = false;
  for (const auto& port : ports) {
    const auto at = std::find(stage.inputs_.begin(), stage.inputs_.end(), port.name) - stage.inputs_.begin();
    if (static_cast<std::size_t>(at) == stage.inputs_.size()) continue;
    if (!graph::contradicts(inputs[static_cast<std::size_t>(at)].shape, port.type.shape)) continue;
    ranks_only_.insert(port.name);
    wrong = true;
  }
  if (wrong) stage.session_ = make_session(chain_.segments[stage.segment_], stage.taps_, stage.outputs_, stage.where_);
  return stage.session_;
}

Stage Branch::stage_of(std::size_t segment) {
  const auto& part = chain_.segments.at(segment);
  Stage stage;
  stage.branch_ = this;
  stage.segment_ = segment;
  stage.taps_ = taps_of(part);
  stage.inputs_ = segment == 0 ? graph_inputs_ : part.inputs;
  return stage;
}

Stage Branch::load_for_taps(std::size_t segment, const std::string& where) {
  Stage stage = stage_of(segment);
  stage.where_ = where;
  stage.session_ = make_session(chain_.segments[segment], stage.taps_, stage.outputs_, where);
  return stage;
}

Stage Branch::load(std::size_t segment, const std::string& where, const std::vector<std::string>& extra_outputs) {
  Stage stage = stage_of(segment);
  const auto& part = chain_.segments[segment];
  stage.outputs_ = part.outputs;
  for (const auto& name : extra_outputs) {
    if (const auto lane = lane_passing(segment, name)) {
      stage.passing_.push_back(*lane);
    } else if (std::find(stage.outputs_.begin(), stage.outputs_.end(), name) == stage.outputs_.end()) {
      stage.outputs_.push_back(name);
    }
  }
  stage.extra_outputs_ = extra_outputs;
  stage.where_ = where;
  stage.session_ = make_session(chain_.segments[segment], stage.taps_, stage.outputs_, where);
  return stage;
}

// The lane in which a value goes past a segment that neither makes nor reads it.
std::optional<std::size_t> Branch::lane_passing(std::size_t segment, const std::string& name) const {
  const auto& part = chain_.segments[segment];
  const int producer = index_.producer(name);
  const bool made_here = producer != graph::kNone && producer >= part.begin;
  if (segment == 0 || made_here || std::find(part.inputs.begin(), part.inputs.end(), name) != part.inputs.end())
    return std::nullopt;
  for (std::size_t lane = 0; lane < chain_.lanes.size(); ++lane) {
    const auto& plan = chain_.lanes[lane];
    const bool holds = std::find(plan.values.begin(), plan.values.end(), name) != plan.values.end();
    if (holds && plan.producer < static_cast<int>(segment) && plan.readers.back() > static_cast<int>(segment))
      return lane;
  }
  return std::nullopt;
}

std::vector<data::Array> Stage::run(std::size_t sample, std::span<const data::Array> graph_inputs,
                                    const std::string& where, data::TapReceiver* receiver) {
  Branch::Values values;
  if (segment_ == 0) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) values[inputs_[i]] = graph_inputs[i];
  } else {
    for (const auto lane : branch_->lanes_read_by(segment_)) {
      auto record = branch_->record(lane, sample);
      const auto& names = branch_->chain_.lanes[lane].values;
      for (std::size_t i = 0; i < names.size(); ++i) values[names[i]] = std::move(record[i]);
    }
  }
  for (const auto lane : passing_) {
    auto record = branch_->record(lane, sample);
    const auto& names = branch_->chain_.lanes[lane].values;
    for (std::size_t i = 0; i < names.size(); ++i) values.emplace(names[i], std::move(record[i]));
  }
  std::vector<data::Array> inputs;
  for (const auto& name : inputs_) inputs.push_back(find(values, name));
  auto results = branch_->session_for(*this, inputs)->run(inputs, where, receiver);
  inputs.clear();
  if (outputs_.empty() && extra_outputs_.empty()) return {};
  for (std::size_t i = 0; i < outputs_.size(); ++i) values[outputs_[i]] = std::move(results[i]);
  results.clear();
  branch_->store_outputs(segment_, sample, values);
  std::vector<data::Array> extra;
  for (const auto& name : extra_outputs_) extra.push_back(find(values, name));
  return extra;
}

void Branch::store_outputs(std::size_t segment, std::size_t sample, const Values& values) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto& plan = chain_.lanes[lane];
    if (plan.producer != static_cast<int>(segment) || spool_->holds(lanes_[lane], sample)) continue;
    store::Record record;
    for (const auto& name : plan.values) record.push_back(find(values, name));
    spool_->put(lanes_[lane], sample, std::move(record));
  }
}

std::vector<std::size_t> Branch::lanes_read_by(std::size_t segment) const {
  std::vector<std::size_t> lanes;
  for (std::size_t lane = 0; lane < chain_.lanes.size(); ++lane) {
    const auto& readers = chain_.lanes[lane].readers;
    if (std::find(readers.begin(), readers.end(), static_cast<int>(segment)) != readers.end()) lanes.push_back(lane);
  }
  return lanes;
}

bool Branch::is_last_reader(std::size_t lane, std::size_t segment) const {
  return chain_.lanes[lane].readers.back() == static_cast<int>(segment);
}

std::vector<std::string> Branch::weights_of(std::size_t segment) const {
  std::vector<std::string> names;
  const auto& part = chain_.segments.at(segment);
  for (int n = part.begin; n < part.end; ++n) {
    for (const auto& name : model_.graph.nodes[static_cast<std::size_t>(n)].inputs()) {
      if (index_.initializer(name) != graph::kNone) names.push_back(name);
    }
  }
  return names;
}

void Branch::prefetch(std::size_t segment, std::size_t first, std::size_t end) {
  if (spool_ == nullptr) return;
  std::vector<store::Spool::Lane> lanes;
  for (const auto lane : lanes_read_by(segment)) lanes.push_back(lanes_[lane]);
  spool_->prefetch(std::move(lanes), first, end);
}

bool Branch::holds_inputs(std::size_t segment, std::size_t sample) const {
  const auto lanes = lanes_read_by(segment);
  return std::all_of(lanes.begin(), lanes.end(), [&](auto lane) { return spool_->holds(lanes_[lane], sample); });
}

bool Branch::holds_outputs(std::size_t segment, std::size_t sample) const {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (chain_.lanes[lane].producer == static_cast<int>(segment) && !spool_->holds(lanes_[lane], sample)) return false;
  }
  return true;
}

bool Branch::holds_later(std::size_t segment, std::size_t samples) const {
  const auto position = static_cast<int>(segment);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto& plan = chain_.lanes[lane];
    if (plan.producer >= position || plan.readers.back() <= position) continue;
    for (std::size_t sample = 0; sample < samples; ++sample) {
      if (!spool_->holds(lanes_[lane], sample)) return false;
    }
  }
  return true;
}

void Branch::release(std::size_t segment, std::size_t sample, bool durable) {
  for (const auto lane : lanes_read_by(segment)) {
    if (!is_last_reader(lane, segment)) continue;
    if (durable || spool_->in_memory(lanes_[lane], sample)) spool_->release(lanes_[lane], sample);
  }
}

void Branch::finish(std::size_t segment) {
  for (const auto lane : lanes_read_by(segment)) {
    if (is_last_reader(lane, segment)) spool_->close(lanes_[lane]);
  }
}

store::Record Branch::record(std::size_t lane, std::size_t sample) {
  auto record = spool_->get(lanes_[lane], sample);
  if (record && record->size() == chain_.lanes[lane].values.size()) return std::move(*record);
  return recompute(lane, sample);
}

// All from the start of the model, for one sample. Rare, so it may be slow; one at a time, so that it stays small.
store::Record Branch::recompute(std::size_t lane, std::size_t sample) {
  const std::lock_guard lock(recompute_mutex_);
  const auto& plan = chain_.lanes[lane];
  const std::string where = fmt::format("a lost record of sample {}", sample + 1);
  if (!options_.inputs_of)
    throw resource_error(where + " was damaged on disk", "run again, or choose another --work-dir");
  const auto inputs = options_.inputs_of(sample);
  Values values;
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph_inputs_[i]] = inputs[i];
  graph::Segment prefix{0, chain_.segments[static_cast<std::size_t>(plan.producer)].end, {}, {}};
  std::vector<std::string> wanted;
  for (const auto& name : plan.values) {
    if (!values.contains(name)) wanted.push_back(name);
  }
  if (!wanted.empty()) {
    NullReceiver null;
    prefix.outputs = wanted;
    auto results = make_session(prefix, taps_of(prefix), wanted, where)->run(inputs, where, &null);
    for (std::size_t i = 0; i < wanted.size(); ++i) values[wanted[i]] = std::move(results[i]);
  }
  store::Record record;
  for (const auto& name : plan.values) record.push_back(find(values, name));
  return record;
}

namespace {

using onnx::Attribute;
using onnx::Node;

constexpr const char* kMicrosoftDomain = "com.microsoft";

bool is_float(const onnx::Model& model, const graph::ValueTypes& types, const std::string& value) {
  return graph::type_of(model, types, value) == onnx::DataType::float32;
}

bool may_have_one_row(const graph::ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  return found != types.end() && found->second.shape && found->second.shape->at(0).value <= 1;
}

bool is_product_of_matrices(const onnx::Model& model, const graph::ValueTypes& types, const Node& node) {
  const bool gemm = node.is("Gemm") && node.int_or("transA", 0) == 0 && node.float_or("alpha", 1.0F) == 1.0F;
  if (!gemm && !node.is("MatMul")) return false;
  const std::string& a = node.inputs()[0];
  const std::string& b = node.inputs()[1];
  if (!is_float(model, types, a) || !is_float(model, types, b) || graph::rank_of(types, b) != 2) return false;
  // The runtime tells an unknown rank as 0, which a factor cannot have.
  const std::size_t rank = graph::rank_of(types, a).value_or(0);
  return (rank == 0 && node.is("MatMul")) || (rank == 2 && may_have_one_row(types, a));
}

// -1 times the product. A MatMul does not become a Gemm: that gives its result a known rank behind factors of unknown
// rank, and for each value of known rank the runtime's memory planner looks through all earlier ones.
Node negative(const Node& node, const std::string& output) {
  const Attribute factor = Attribute::of_float("alpha", -1.0F);
  if (node.is("MatMul")) return {"FusedMatMul", node.name(), node.inputs(), {output}, {factor}, kMicrosoftDomain};
  return {"Gemm",
          node.name(),
          node.inputs(),
          {output},
          {factor, Attribute::of_float("beta", -node.float_or("beta", 1.0F)),
           Attribute::of_int("transB", node.int_or("transB", 0))}};
}

}  // namespace

void make_batch_invariant(onnx::Model& model, const graph::ValueTypes& types) {
  graph::Index index(model);
  std::vector<Node> nodes;
  for (auto& node : model.graph.nodes) {
    if (!is_product_of_matrices(model, types, node)) {
      nodes.push_back(std::move(node));
      continue;
    }
    const std::string& output = node.outputs().front();
    nodes.push_back(negative(node, index.fresh_name(output + "@negative")));
    nodes.push_back({"Neg", index.fresh_name(output + "@negate"), {nodes.back().outputs().front()}, {output}});
    if (node.is("MatMul") && model.opset(kMicrosoftDomain) == 0) model.set_opset(kMicrosoftDomain, 1);
  }
  model.graph.nodes = std::move(nodes);
}

}  // namespace detent::exec
