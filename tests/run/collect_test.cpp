#include <gtest/gtest.h>

#include <sys/resource.h>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/file.h"
#include "calibration/device_support.h"
#include "calibration/statistics_file.h"
#include "data/support.h"
#include "exec/emit.h"
#include "exec/support.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "graph/segment.h"
#include "onnx/functions.h"
#include "onnx/write.h"
#include "planning/segments.h"
#include "quantization/emit/barriers.h"
#include "quantization/placement/selection.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/support.h"
#include "run/collect.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/pairing.h"
#include "run/comparison/segmented_runs.h"
#include "run/model/proposals.h"
#include "run/records/run_report.h"
#include "run/samples/sample_feed.h"
#include "run/samples/samples.h"

namespace detent::run {
namespace {

// A calibration whose device is the host: the sweep, its checkpoints and its notes are the real ones.

namespace fs = std::filesystem;

class CollectOnADevice : public testing::Test {
 protected:
  CollectOnADevice() {
    using namespace graph::test;
    // Arithmetic that every provider and tuning rounds alike.
    const auto model =
        make_model({{"Add", "a", {"x", "w"}, {"s"}}, {"Relu", "r", {"s"}, {"t"}}, {"Mul", "m", {"t", "s"}, {"y"}}},
                   {floats("w", {4}, {0.5F, -2, 0.25F, -1})}, 17, {value("x", {3, 4})}, {value("y", {3, 4})});
    onnx::write_model(model, at("model.onnx"), {});
    fs::create_directory(at("samples"));
    for (int i = 0; i < 5; ++i) {
      std::ofstream(at(fmt::format("samples/{}.npy", i)), std::ios::binary)
          << data::test::counting({3, 4}, static_cast<float>(i));
    }
    profile::Profiler profiler;
    prepared_ =
        prepare(onnx::read_model(at("model.onnx")), QuantConfig(), exec::test::runtime(), folder_.path(), profiler, {});
    QuantConfig config;
    config.op_types = {"Add", "Mul", "Relu"};
    placement_ = place_qdq_pairs(prepared_, config);
  }

  fs::path at(const std::string& name) const { return folder_.path() / name; }

  std::string collected(CollectOptions options) {
    const auto source = open_samples(at("samples"), nullptr, input_specs(prepared_.model), {});
    options.histograms = true;
    return calibration::encode(
        collect({exec::test::runtime(), {}, folder_.path()}, prepared_, placement_, *source, options));
  }

  TempDir folder_;
  Prepared prepared_;
  quantization::Placement placement_;
};

TEST_F(CollectOnADevice, GivesTheStatisticsOfTheHost) {
  const std::string expected = collected({});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.device = &device, .on_device = &left}), expected);
  EXPECT_TRUE(left.nodes.empty()) << "all ran on the device";
}

TEST_F(CollectOnADevice, GoesThroughSegments) {
  const std::string expected = collected({});
  store::Spool spool({.directory = folder_.path()});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.cuts = {1, 2}, .spool = &spool, .device = &device, .on_device = &left}), expected);
}

TEST_F(CollectOnADevice, CountsVotesRunByRun) {
  const std::string expected = collected({.votes = true});
  calibration::test::HostDevice device;
  OnDevice left{.directory = folder_.path(), .nodes = {}};
  EXPECT_EQ(collected({.votes = true, .device = &device, .on_device = &left}), expected);
}

TEST(DeviceNotes, SayWhatRanWhere) {
  const calibration::test::HostDevice device;
  DeviceConfig config{{0}, {}, {}, {}};
  EXPECT_EQ(device_notes(config, device, {.directory = {}, .nodes = {}, .copies = 2}),
            std::vector<std::string>{"calibration ran on host:0 (threads one by one)"});
  config.cuda = {1, 0};
  config.precision = DevicePrecision::bfloat16;
  const auto notes =
      device_notes(config, device, {.directory = {}, .nodes = {{"Gather", 2}, {"Shape", 1}}, .copies = 1});
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "calibration ran on host:0 (threads one by one), the first of the devices, in float32");
  EXPECT_EQ(
      notes[1],
      "ONNX Runtime ran 3 nodes on the CPU nevertheless (2 Gather, 1 Shape), with 1 copy between it and the device "
      "in each run");
}

TEST(PlaceOfPasses, IsTheFirstDeviceWhereTheRuntimeHasIt) {
  const auto& runtime = exec::test::runtime();
  EXPECT_EQ(inference_device_of(DeviceConfig()), nullptr);
  EXPECT_EQ(inference_device_note(DeviceConfig(), runtime, "trials"), "");
  const DeviceConfig config{{1, 0}, 4096, DevicePrecision::tf32, {}};
  const auto place = inference_device_of(config, 4);
  ASSERT_NE(place, nullptr);
  EXPECT_EQ(place->ordinal, 1);
  EXPECT_EQ(place->memory_limit, 1024U);
  EXPECT_TRUE(place->tf32);
  if (runtime.has_provider(place->provider)) GTEST_SKIP() << "this ONNX Runtime has CUDA's provider";
  EXPECT_EQ(inference_device_of(config, runtime), nullptr);
  EXPECT_EQ(inference_device_note(config, runtime, "trials"),
            "trials ran on the CPU: this ONNX Runtime was built without CUDAExecutionProvider");
}

using quantization::testing::Builder;

Builder& conv(Builder& b, const std::string& in, const std::string& out) {
  return b.constant("w_" + out, {4, 4, 1, 1}).node("Conv", {in, "w_" + out}, {out});
}

std::map<std::string, calibration::Response> found(const Builder& b) {
  const auto chains =
      quantization::integer_chains(b.model, graph::Index(b.model), quantization::select_nodes(b.model, {}));
  const auto placement = quantization::place(b.model, b.types, {}, chains);
  auto model = b.model;
  model.set_ir_version(8);
  return consumer_functions(model, b.types, placement, exec::test::runtime());
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST(Responses, AGateIsAFunctionOfTheValue) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "y").output("y");
  const auto all = found(b);
  ASSERT_EQ(all.size(), 1);
  for (const double x : {-30.0, -5.0, -1.0, 0.0, 0.4, 12.0}) EXPECT_NEAR(all.at("a")(x), silu(x), 1e-3) << x;
}

TEST(Responses, ScalarConstantsTakePart) {
  Builder b;  // a decomposed HardSwish
  b.constant("three", {}, {3}).constant("six", {1}, {6}).constant("zero", {}, {0});
  conv(b.input("x"), "x", "a").node("Add", {"a", "three"}, {"t"}).node("Clip", {"t", "zero", "six"}, {"c"});
  b.node("Div", {"c", "six"}, {"d"}).node("Mul", {"a", "d"}, {"h"});
  conv(b, "h", "y").output("y");
  const auto all = found(b);
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all.at("a")(-4), 0);
  EXPECT_NEAR(all.at("a")(1), 2.0 / 3, 1e-5);
  EXPECT_NEAR(all.at("a")(7), 7, 1e-5);
}

TEST(Responses, NoneWhereAnotherReaderSeesTheValueAsItIs) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "c").node("Add", {"c", "a"}, {"y"}).output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

TEST(Responses, NoneWhereTwoValuesComeOut) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "c").node("Mul", {"c", "g"}, {"y"}).output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

TEST(Responses, NoneWhereConstantsDifferFromChannelToChannel) {
  Builder b;
  b.constant("slopes", {4, 1, 1});
  conv(b.input("x"), "x", "a").node("Mul", {"a", "slopes"}, {"m"}).node("Tanh", {"m"}, {"t"});
  conv(b, "t", "y").output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

// Samples of one number each, which counts how often one is read.
class Numbers final : public data::SampleSource {
 public:
  explicit Numbers(std::size_t count) : count_(count) {}

  std::optional<data::Sample> next() override {
    if (next_ == count_) return std::nullopt;
    ++read;
    const auto value = std::make_shared<float>(static_cast<float>(next_++));
    return data::Sample{"a number", {{onnx::DataType::float32, {1}, std::as_bytes(std::span(value.get(), 1)), value}}};
  }
  void rewind() override { next_ = 0; }
  std::size_t sample_count() const override { return count_; }
  std::vector<std::string> notes() const override { return {}; }

  std::size_t read = 0;

 private:
  std::size_t count_, next_ = 0;
};

std::vector<float> all_of(data::SampleSource& source, std::size_t skipped = 0) {
  std::vector<float> values;
  source.rewind();
  source.skip(skipped);
  while (const auto sample = source.next()) {
    values.emplace_back();
    std::memcpy(&values.back(), sample->inputs.front().bytes.data(), sizeof(float));
  }
  return values;
}

TEST(NodeChoices, AReasonThatHoldsInAnyCaseStays) {
  Prepared prepared;
  prepared.leave_in_float("n", InFloat::faster);
  EXPECT_FALSE(prepared.keeps_in_float("n"));
  prepared.leave_in_float("n", InFloat::inexact);
  EXPECT_TRUE(prepared.keeps_in_float("n"));
  prepared.leave_in_float("n", InFloat::faster);
  EXPECT_EQ(prepared.choice("n").in_float, InFloat::inexact);
  EXPECT_FALSE(prepared.choice("other").in_float);
}

TEST(ContentOrderedSamples, SkipsAndReadsAgainWithoutTheInnerSource) {
  Numbers numbers(20);
  ContentOrderedSamples source(numbers, {});
  const auto all = all_of(source);
  ASSERT_EQ(all.size(), 20U);
  const auto read = numbers.read;
  EXPECT_EQ(all_of(source, 15), std::vector(all.begin() + 15, all.end()));
  EXPECT_EQ(all_of(source, 30), std::vector<float>{});
  EXPECT_EQ(all_of(source), all);
  EXPECT_EQ(numbers.read, read);
}

TEST(ContentOrderedSamples, GivesTheSameWhateverItMayHold) {
  Numbers numbers(20);
  ContentOrderedSamples whole(numbers, {});
  const auto all = all_of(whole);
  ContentOrderedSamples few(numbers, {.ahead = 3 * sizeof(float)});
  EXPECT_EQ(all_of(few), all);
  EXPECT_EQ(all_of(few, 7), std::vector(all.begin() + 7, all.end()));
  ContentOrderedSamples once(numbers, {});
  once.keep(false);
  EXPECT_EQ(all_of(once, 2), std::vector(all.begin() + 2, all.end()));
  EXPECT_EQ(all_of(once), all);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

PairSums sums_of(const std::vector<float>& x, const std::vector<float>& y) {
  PairSums sums;
  sums.add(std::span(x), std::span(y));
  return sums;
}

TEST(PairSums, LeaveOutWhatIsTheSameInBothAndNotFinite) {
  const auto finite = sums_of({3, 4}, {3, 4.5F});
  const auto masked = sums_of({3, -kInfinity, 4, kNaN}, {3, -kInfinity, 4.5F, kNaN});
  EXPECT_EQ(masked.sqnr_db(), finite.sqnr_db());
  EXPECT_EQ(masked.cosine(), finite.cosine());
  EXPECT_EQ(masked.max_abs, 0.5);
}

TEST(PairSums, AreInfinitelyOffWhereOnlyOneIsFinite) {
  for (const float odd : {kInfinity, -kInfinity, kNaN}) {
    EXPECT_EQ(sums_of({1, 2}, {1, odd}).sqnr_db(), -kInfinity);
    EXPECT_EQ(sums_of({1, odd}, {1, 2}).max_abs, kInfinity);
  }
  EXPECT_EQ(sums_of({1, kInfinity}, {1, -kInfinity}).sqnr_db(), -kInfinity);
  EXPECT_EQ(sums_of({3, 4}, {kNaN, kNaN}).signal, 25);
}

data::Array array_of(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return {onnx::DataType::float32, std::move(shape), std::as_bytes(std::span(values)), nullptr};
}

TEST(PairSums, PairWhatStandsInBothWhereShapesDiffer) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6}, y{1, 2, 9, 4, 5, 9, 9, 9, 9};
  PairSums sums;
  sums.add(array_of(x, {2, 3}), array_of(y, {3, 3}));
  EXPECT_EQ(sums.paired, 6u);
  EXPECT_EQ(sums.unpaired, 3u);
  EXPECT_EQ(sums.noise, 36 + 9);
  PairSums narrow;
  narrow.add(array_of({y.begin(), y.begin() + 4}, {2, 2}), array_of(x, {2, 3}));
  EXPECT_EQ(narrow.paired, 4u);
  EXPECT_EQ(narrow.signal, 1 + 4 + 81 + 16);
  EXPECT_EQ(narrow.noise, 0 + 0 + 25 + 1);
}

// No pass over a graph takes time that grows with the square of its nodes.

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
    time("emit", [&] { emitted = quantization::emit_qdq({model}, assignment); });
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

// Each pass by itself, over models that give all of them something to do.

using namespace exec::test;  // NOLINT: the makers of small models

Model picture() {
  const auto of_floats = [](const char* name, const std::vector<float>& v) {
    return floats(name, {static_cast<std::int64_t>(v.size())}, v);
  };
  const auto spread = [](const char* name, const std::vector<std::int64_t>& dims, unsigned seed) {
    return floats(name, dims, exec::test::floats_of(random_floats(dims, seed)));
  };
  using A = Attribute;
  return make_model(
      {{"Identity", "same", {"x"}, {"a"}},
       {"Cast", "idle", {"a"}, {"b"}, {A::of_int("to", 1)}},
       {"CastLike", "like", {"b", "x"}, {"c"}},
       {"Constant", "made", {}, {"k"}, {A::of_float("value_float", 0.0F)}},
       {"Add", "nothing", {"c", "k"}, {"d"}},
       {"Conv", "conv", {"d", "w"}, {"e"}},
       {"BatchNormalization", "bn", {"e", "s", "t", "mean", "var"}, {"f"}},
       {"PRelu", "prelu", {"f", "slope"}, {"g"}},
       {"BatchNormalization", "alone", {"g", "s", "t", "mean", "var"}, {"h"}},
       {"Add", "shift", {"h", "three"}, {"h3"}},
       {"Clip", "clip", {"h3", "zero", "six"}, {"hc"}},
       {"Mul", "gated", {"h", "hc"}, {"hm"}},
       {"Div", "divided", {"hm", "six"}, {"i"}},
       {"Div", "root", {"i", "sqrt2"}, {"i2"}},
       {"Erf", "erf", {"i2"}, {"ie"}},
       {"Add", "one_more", {"ie", "one"}, {"i1"}},
       {"Mul", "by_x", {"i", "i1"}, {"ix"}},
       {"Mul", "half", {"ix", "a_half"}, {"j"}},
       {"Pow", "square", {"j", "two"}, {"k2"}},
       {"InstanceNormalization", "instance", {"k2", "s", "t"}, {"l"}},
       {"Conv", "point", {"l", "w1"}, {"m"}, {A::of_ints("strides", {2, 2})}},
       {"AveragePool",
        "mean",
        {"m"},
        {"n"},
        {A::of_ints("kernel_shape", {2, 2}), A::of_ints("pads", {1, 1, 0, 0}), A::of_int("ceil_mode", 1),
         A::of_int("count_include_pad", 1)}},
       {"HardSwish", "swish", {"n"}, {"o"}},
       {"Reshape", "rows", {"o", "flat"}, {"p"}},
       {"Gemm", "gemm", {"p", "gw", "gb"}, {"q"}, {A::of_float("alpha", 0.5F), A::of_float("beta", 2)}},
       {"Mul", "scaled", {"q", "three"}, {"r"}},
       {"Einsum", "sum", {"r", "ew"}, {"u"}, {A::of_string("equation", "nc,co->no")}},
       {"Softmax", "soft", {"u"}, {"v"}},
       {"IsNaN", "asks", {"v"}, {"nan"}},
       {"Where", "guard", {"nan", "zero", "v"}, {"y"}}},
      {spread("w", {4, 3, 3, 3}, 1), spread("w1", {4, 4, 1, 1}, 2), of_floats("s", {1, 2, 0.5F, -1}),
       of_floats("t", {0.5F, 0, -1, 2}), of_floats("mean", {0, 1, 0, 0.5F}), of_floats("var", {1, 2, 0.5F, 1}),
       floats("slope", {4, 1, 1}, {0.25F, 0.25F, 0.25F, 0.25F}), floats("three", {}, {3}), floats("zero", {}, {0}),
       floats("six", {}, {6}), floats("sqrt2", {}, {1.41421354F}), floats("one", {}, {1}), floats("a_half", {}, {0.5F}),
       floats("two", {}, {2}), ints("flat", {1, -1}), spread("gw", {36, 6}, 3), floats("gb", {1}, {0.5F}),
       spread("ew", {6, 5}, 4)},
      17, {value("x", {1, 3, 8, 8})}, {value("y", {1, 5})});
}

// What must hold of a model at any time: names in scope, nodes in order, types as they were inferred.
void verify(const Model& model, const graph::ValueTypes& types) {
  const graph::Index index(model);
  onnx::check_scope(model, "after a pass");
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    for (const auto& input : model.graph.nodes[n].inputs())
      EXPECT_LT(index.producer(input), static_cast<int>(n)) << input;
  }
  for (const auto& [name, type] : exec::infer_value_types(runtime(), model)) {
    const auto known = types.find(name);
    if (known != types.end()) {
      EXPECT_EQ(known->second.type, type.type) << name;
    }
  }
}

TEST(Passes, EachKeepsWhatTheModelComputes) {
  std::set<std::string_view> ran;
  for (const std::string target : {"ort-cpu", "qnn:a16", "openvino", "tensorrt", "amd-npu:xint8"}) {
    const TempDir folder;
    QuantConfig config;
    config.target = target;
    config.preset = "balanced";
    config.input_shapes = {{"x", {1, 3, 8, 8}}};
    config.float_type = FloatType::float32;
    if (target == "qnn:a16") config.activation_type = QuantType::uint16;
    const std::vector<Array> inputs{random_floats({1, 3, 8, 8}, 5)};
    const auto before = floats_of(exec::test::run(picture(), inputs)[0]);
    profile::Profiler profiler;
    PassControl control;
    control.after = [&](const Pass& pass, const Prepared& prepared) {
      SCOPED_TRACE(fmt::format("{}: {}", target, pass.name));
      ran.insert(pass.name);
      verify(prepared.model, prepared.types);
      const auto now = floats_of(exec::test::run(prepared.model, inputs)[0]);
      ASSERT_EQ(now.size(), before.size());
      for (std::size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], before[i], 1e-5F);
    };
    prepare(picture(), config, runtime(), folder.path(), profiler, {}, control);
    EXPECT_GE(profiler.spans().size(), 15U) << "each is timed";
  }
  for (const auto& pass : passes()) EXPECT_TRUE(ran.contains(pass.name)) << pass.name << ": no target here wants it";
}

TEST(SegmentedRuns, GiveWhatTheModelGivesInOnePiece) {
  auto model = picture();
  model.graph.outputs.insert(model.graph.outputs.begin(), value("m", {1, 4, 4, 4}));
  std::vector<data::Sample> samples;
  for (unsigned s = 0; s < 3; ++s) samples.push_back({fmt::format("{}", s), {random_floats({1, 3, 8, 8}, s)}});
  for (const std::uint64_t weights : {std::uint64_t{1}, std::uint64_t{600}, std::uint64_t{1} << 20}) {
    const TempDir folder;
    SegmentedRuns runs(
        runtime(), model, {}, folder.path(),
        [&, s = std::size_t{0}]() mutable { return s < 3 ? std::make_optional(samples[s++]) : std::nullopt; }, weights);
    for (const auto& sample : samples) {
      const auto run = runs.next();
      ASSERT_TRUE(run);
      EXPECT_EQ(run->sample.origin, sample.origin);
      EXPECT_EQ(floats_of(run->sample.inputs.at(0)), floats_of(sample.inputs[0]));
      const auto expected = exec::test::run(model, sample.inputs);
      ASSERT_EQ(run->results.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) {
        const auto now = floats_of(run->results[i]), whole = floats_of(expected[i]);
        ASSERT_EQ(now.size(), whole.size());
        for (std::size_t k = 0; k < now.size(); ++k) EXPECT_NEAR(now[k], whole[k], 1e-5F);
      }
    }
    EXPECT_FALSE(runs.next());
  }
}

// A float model that gives what it reads, and a model beside it.
struct TwoModels {
  bool float_is_open = false, other_is_open = false;
  std::size_t loaded = 0, ran = 0, together = 0, ran_first = 0;

  FloatModel of_float() {
    return {[this](const data::Sample& sample) {
              loaded += float_is_open ? 0 : 1;
              float_is_open = true;
              together += other_is_open ? 1 : 0;
              ++ran;
              return sample.inputs;
            },
            [this] { float_is_open = false; }};
  }
  ModelTurns turns(FloatResults& waiting, bool shared, SharedDecisions& decisions) {
    return {waiting, shared, decisions, [this] { other_is_open = false; },
            [this](const auto&) { run_other(), ++ran_first; }};
  }
  void run_other() {
    other_is_open = true;
    together += float_is_open ? 1 : 0;
  }
};

class Repeated final : public data::SampleSource {
 public:
  explicit Repeated(std::size_t count) : count_(count) {}
  std::optional<data::Sample> next() override {
    if (next_ == count_) return std::nullopt;
    const auto s = next_++;
    return data::Sample{fmt::format("{}", s), {random_floats({1 << 19}, static_cast<unsigned>(s))}};  // 2 MiB
  }
  void rewind() override { next_ = 0; }
  std::size_t sample_count() const override { return count_; }
  std::vector<std::string> notes() const override { return {}; }

 private:
  std::size_t count_, next_ = 0;
};

TEST(FloatRuns, TakeTurnsWithTheOtherModel) {
  constexpr std::uint64_t kTurns = std::uint64_t{16} << 20;  // half of it for a turn: two samples with their results
  auto first = picture(), second = picture();
  SharedDecisions decisions(runtime(), first, second);
  for (const std::uint64_t disk : {kTurns, kTurns / 4, std::uint64_t{0}}) {
    SCOPED_TRACE(disk);
    const TempDir folder;
    FloatResults waiting(folder.path(), disk, kTurns);
    TwoModels models;
    Repeated source(7);
    FloatRuns runs(models.of_float(), source, 5, models.turns(waiting, false, decisions));
    for (unsigned s = 0; s < 5; ++s) {
      const auto run = runs.next();
      ASSERT_TRUE(run);
      models.run_other();
      EXPECT_EQ(run->sample.origin, fmt::format("{}", s));
      EXPECT_EQ(floats_of(run->results.at(0)), floats_of(random_floats({1 << 19}, s)));
      EXPECT_EQ(floats_of(run->sample.inputs.at(0)), floats_of(run->results[0]));
    }
    EXPECT_FALSE(runs.next());
    EXPECT_EQ(models.ran, 5U);
    EXPECT_EQ(models.ran_first, 5U);
    EXPECT_EQ(models.together == 0, disk == kTurns);
    EXPECT_EQ(models.loaded, disk == kTurns ? 3U : 1U);
  }
}

TEST(FloatRuns, AreMadeOnceForAllWhoShareThem) {
  auto first = picture(), second = picture();
  SharedDecisions decisions(runtime(), first, second);
  const TempDir folder;
  FloatResults kept(folder.path(), std::uint64_t{1} << 30);
  TwoModels models;
  Repeated source(6);
  for (const std::size_t most : {4U, 6U, 6U}) {
    source.rewind();
    source.skip(6 - most);
    FloatRuns runs(models.of_float(), source, most, models.turns(kept, true, decisions));
    for (std::size_t s = 6 - most; s < 6; ++s) {
      const auto run = runs.next();
      ASSERT_TRUE(run);
      EXPECT_EQ(floats_of(run->results.at(0)), floats_of(random_floats({1 << 19}, static_cast<unsigned>(s))));
    }
    EXPECT_FALSE(runs.next());
  }
  EXPECT_EQ(models.ran, 6U);
  EXPECT_EQ(models.loaded, 2U);
}

TEST(Passes, AreLeftOutByName) {
  const TempDir folder;
  profile::Profiler profiler;
  const auto prepared = [&](std::vector<std::string> skipped) {
    return op_types(
        prepare(picture(), {}, runtime(), folder.path(), profiler, {}, {.skipped = std::move(skipped)}).model);
  };
  EXPECT_EQ(std::ranges::count(prepared({}), "BatchNormalization"), 1);
  EXPECT_EQ(std::ranges::count(prepared({"batch-norms", "identities"}), "BatchNormalization"), 2);
  expect_error([&] { prepared({"no-such-pass"}); }, "no pass that may be left out is named 'no-such-pass'",
               ErrorKind::usage);
  for (const auto* name : {"infer-types", "sort"})
    expect_error([&] { prepared({name}); }, "no pass that may be left out is named", ErrorKind::usage);
}

}  // namespace
}  // namespace detent::run
