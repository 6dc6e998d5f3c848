// No pass over a graph takes time that grows with the square of its nodes.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "exec/emit.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/segment.h"
#include "planning/segments.h"
#include "quantization/emit/barriers.h"
#include "quantization/support.h"
#include "run/records/run_report.h"

namespace detent::run {
namespace {

using quantization::testing::Builder;

std::string numbered(const char* what, int i) { return what + std::to_string(i); }

// Many nodes behind one value, or many that read one.
void matmuls(Builder& b, int nodes) {
  for (int i = 0; i < nodes; ++i)
    b.constant(numbered("w", i), {4, 4}).node("MatMul", {numbered("v", i), numbered("w", i)}, {numbered("v", i + 1)});
}
void shared_bias(Builder& b, int nodes) {
  b.constant("w", {4, 4}).constant("b", std::vector<std::int64_t>{4});
  for (int i = 0; i < nodes; ++i) b.node("Gemm", {numbered("v", i), "w", "b"}, {numbered("v", i + 1)});
}
void movement(Builder& b, int nodes) {
  b.constant("w", {4, 4}).node("MatMul", {"v0", "w"}, {"v1"});
  for (int i = 1; i < nodes; ++i) b.node("Transpose", {numbered("v", i)}, {numbered("v", i + 1)});
}
void activations(Builder& b, int nodes) {
  b.constant("w", {4, 4});
  for (int i = 0; i < nodes; i += 2) {
    b.node("MatMul", {numbered("v", i), "w"}, {numbered("v", i + 1)});
    b.node("Relu", {numbered("v", i + 1)}, {numbered("v", i + 2)});
  }
}
void branches(Builder& b, int nodes) {
  std::vector<std::string> made;
  for (int i = 1; i < nodes; ++i) {
    b.constant(numbered("w", i), {4, 4}).node("MatMul", {"v0", numbered("w", i)}, {numbered("v", i)});
    made.push_back(numbered("v", i));
  }
  b.node("Concat", made, {numbered("v", nodes)}, {onnx::Attribute::of_int("axis", 0)});
}
void removed(Builder& b, int nodes) {
  for (int i = 0; i + 1 < nodes; ++i) b.node("Identity", {numbered("v", i)}, {numbered("v", i + 1)});
  b.constant("w", {4, 4}).node("MatMul", {numbered("v", nodes - 1), "w"}, {numbered("v", nodes)});
}

Builder grown(void (*shape)(Builder&, int), int nodes) {
  Builder b;
  b.input("v0");
  shape(b, nodes);
  b.output(numbered("v", nodes));
  graph::add_initializers(b.model, b.types);
  for (auto& [name, type] : b.types) {
    if (!type.shape) type.shape = {{4, ""}, {4, ""}};
  }
  return b;
}

// Without what the system takes for fresh pages, which on some machines is most of it.
double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec) + 1e-6 * static_cast<double>(used.ru_utime.tv_usec);
}

constexpr const char* kLinear = "index";

// CPU seconds of each pass that quantizing a model makes, by name.
class Passes {
 public:
  explicit Passes(Builder built) : built_(std::move(built)) {}

  std::map<std::string, double> run() {
    auto& model = built_.model;
    const auto& types = built_.types;
    time(kLinear, [&] { const graph::Index of_given(model); });
    time("lift constants", [&] { graph::lift_constants(model); });
    time("sort", [&] { graph::sort_topologically(model); });
    time("remove identities", [&] { graph::remove_identities(model); });
    time("constant nodes", [&] { graph::constant_nodes(model, types); });
    time("fold", [&] { graph::fold_batch_norm(model, [](auto bytes) { return onnx::TensorData::owned(bytes); }); });
    quantization::Placement placement;
    time("place", [&] { placement = built_.place(); });
    quantization::Proposals proposals;
    time("scan weights", [&] { proposals.constants = scan_weights(model, placement, false); });
    const auto observed = placement.to_observe();
    const graph::Index index(model);
    time("liveness", [&] { graph::liveness(model, index, types); });
    time("execution order", [&] { graph::execution_order(model, index); });
    time("cuts", [&] { graph::harmless_cuts(model, index, types, {observed.begin(), observed.end()}); });
    const planning::Budget budget{.memory = std::uint64_t{1} << 40, .disk = std::uint64_t{1} << 40};
    time("plan", [&] { planning::plan_sweep(model, types, observed, {observed.size(), true, 1, 1, 64}, 2, budget); });
    time("taps", [&] { exec::emit(model, {observed, {}, {}}); });
    for (const auto& value : observed) proposals.ranges[value] = {{-1.0F, 1.0F}, "minmax"};
    time("shared", [&] { copy_shared_ranges(placement, proposals.ranges); });
    quantization::Assignment assignment;
    time("assign", [&] { assignment = assign(model, placement, proposals, {}); });
    QuantizeResult result;
    time("record", [&] { record_assignment(model, assignment, result); });
    std::optional<quantization::Emitted> emitted;
    time("emit", [&] { emitted = quantization::emit_qdq(model, assignment, {}); });
    time("barriers", [&] { quantization::add_barriers(*emitted); });
    time(kLinear, [&] { const graph::Index of_result(emitted->model); });
    return std::move(seconds_);
  }

 private:
  template <class Pass>
  void time(const char* name, const Pass& pass) {
    const double start = cpu_seconds();
    pass();
    seconds_[name] += cpu_seconds() - start;
  }

  Builder built_;
  std::map<std::string, double> seconds_;
};

// Two sizes would be met by different caches, and the ratio of their times would say little. One large graph is
// compared with work that is linear and touches the same values: an index over what is given and one over what comes
// out. What else the machine does may make any one measurement several times as long: what seems to grow is measured
// again.
std::string growing(void (*shape)(Builder&, int)) {
  constexpr int kNodes = 16000;
  constexpr double kTimes = 12;  // the slowest pass, emit, makes several indices and takes about 6 times as long as one
  std::map<std::string, double> shortest;
  std::string found;
  for (int attempt = 0; attempt < 5; ++attempt) {
    for (const auto& [pass, seconds] : Passes(grown(shape, kNodes)).run()) {
      const auto [it, first] = shortest.try_emplace(pass, seconds);
      if (!first) it->second = std::min(it->second, seconds);
    }
    found.clear();
    for (const auto& [pass, seconds] : shortest)
      if (seconds > kTimes * shortest.at(kLinear)) found += pass + ' ';
    if (found.empty()) break;
  }
  return found;
}

TEST(Growth, NoPassGrowsWithTheSquareOfTheNodes) {
  for (const auto shape : {matmuls, shared_bias, movement, activations, branches, removed})
    EXPECT_EQ(growing(shape), "") << "of " << grown(shape, 2).model.graph.nodes[0].op_type();
}

}  // namespace
}  // namespace detent::run
