#include <sys/stat.h>

#include "base/text.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "onnx/model_read.h"
#include "onnx/tensor.h"
#include "onnx/write.h"

namespace detent::fuzz {
namespace {

// Models: everything that the reader gives is walked, and what is written reads back as the same bytes.

using onnx::Model;

void walk(const Model& model) {
  for (const auto& node : model.graph.nodes) {
    require(!node.label().empty(), "a node has a label");
    for (const auto& attribute : node.attributes())
      try_to([&] { onnx::read_attribute_tensor(model, node, attribute); });
    try_to([&] { graph::captured_names(model, node); });
  }
  for (const auto& tensor : model.graph.initializers) require(tensor.count() >= 0, "a tensor's elements are counted");
  model.metadata("key");
  try_to([&] {
    Model sorted = model;
    graph::sort_topologically(sorted);
    const graph::Index index(sorted);
    graph::depends_on_input(sorted, index);
  });
}

// Bodies and functions are put in place, and bodies back when the model is written.
void unfold(const Model& model) {
  try_to([&] {
    Model unfolded = model;
    graph::unfold(unfolded);
    graph::sort_topologically(unfolded);
    const std::string written = onnx::encode_model(unfolded, nullptr);
    require(try_to([&] { onnx::read_model(MemoryFile(as_byte_span(written)).path()); }),
            "a model that was unfolded can be read");
  });
}

void change(Model model) {
  model.set_opset("", 21);
  model.set_opset("com.microsoft", 1);
  model.set_ir_version(10);
  model.set_producer("detent", "1");
  model.add_metadata("added", "yes");
  model.metadata("added");
  for (auto& node : model.graph.nodes) {
    node.set_name("n");
    node.set_attribute(onnx::Attribute::of_int("axis", 1));
    node.remove_attribute("axis");
  }
  try_to([&] { onnx::encode_model(model, nullptr); });
}

void run_model(Bytes input) {
  try_to([&] {
    const Model model = onnx::read_model(MemoryFile(input).path());
    walk(model);
    unfold(model);
    // Fields may stand in any order in the file; once written they have one.
    const std::string once = onnx::encode_model(model, nullptr);
    Model again;
    require(try_to([&] { again = onnx::read_model(MemoryFile(as_byte_span(once)).path()); }),
            "a model that was written can be read");
    require(onnx::encode_model(again, nullptr) == once, "a model reads back as it was written");
    change(model);
  });
}

const Registered model_target{{"model", run_model, {&kModel}, 0, 8}};

// Nodes and their attributes, read by each accessor, changed and written.

using onnx::Attribute;
using onnx::Node;

void read(const onnx::Model& model, const Node& node, const Attribute& a) {
  try_to([&] { a.as_int(); });
  try_to([&] { a.as_float(); });
  try_to([&] { a.as_string(); });
  try_to([&] { a.as_ints(); });
  try_to([&] { a.as_floats(); });
  try_to([&] { a.as_tensor(); });
  try_to([&] {
    for (const auto& graph : a.as_graphs()) onnx::read_graph(graph, nullptr, *model.external, "a body");
  });
  try_to([&] { onnx::read_attribute_tensor(model, node, a); });
  try_to([&] { node.int_or(a.name(), 1); });
  try_to([&] { node.float_or(a.name(), 1); });
}

void change_node(Node node) {
  for (std::size_t i = 0; i < node.inputs().size(); ++i) node.set_input(i, "i");
  for (std::size_t i = 0; i < node.outputs().size(); ++i) node.set_output(i, "o");
  node.set_op_type("Identity");
  node.set_attribute(Attribute::of_ints("axes", {1, -1}));
  node.set_attribute(Attribute::of_float("alpha", 1));
  node.set_attribute(Attribute::of_messages("bodies", Attribute::Kind::graphs, {"", ""}));
  require(node.attribute("bodies")->as_graphs().size() == 2, "an attribute holds the messages that it is made of");
  node.set_attribute(Attribute::of_string("mode", "x"));
  const auto wire = node.encode();
  const Node again(wire);
  require(again.inputs() == node.inputs() && again.outputs() == node.outputs(), "a node reads back as it was written");
  require(again.encode().view() == wire.view(), "a node that was not changed is written as it was read");
}

void run_attribute(Bytes input) {
  try_to([&] {
    onnx::Model model;
    model.path = external_folder() / "model.onnx";
    model.external = std::make_shared<onnx::ExternalFiles>(model.path);
    const auto node =
        onnx::with_damage_as_bad_input("'x'", [&] { return Node(onnx::Wire::own(std::string(as_text(input)))); });
    for (const auto& attribute : node.attributes()) read(model, node, attribute);
    require(node.attribute("no such attribute\n") == nullptr || !node.attributes().empty(),
            "nothing has no attributes");
    change_node(node);
  });
}

const Registered attribute_target{{"attribute", run_attribute, {&kNode}, 0, 10}};

// TensorProtos, with data inline or in a file: sizes agree with shapes, files are those inside the model's folder.

namespace fs = std::filesystem;

void check_file(const MappedFile& file) {
  const auto [end, _] = std::mismatch(external_folder().begin(), external_folder().end(),  //
                                      fs::canonical(file.path()).begin());
  require(end == external_folder().end(), "external data lie inside the model's folder");
  struct stat info {};
  require(::fstat(file.descriptor(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1,
          "external data are a regular file with one name");
}

void check(const onnx::Tensor& tensor) {
  if (tensor.type == onnx::DataType::undefined || tensor.type == onnx::DataType::string) return;
  if (const auto bytes = onnx::byte_count(tensor.type, tensor.count()))
    require(tensor.data.size() == *bytes || tensor.data.size() == 0, "a tensor has the bytes of its shape");
  if (tensor.data.file()) check_file(*tensor.data.file());
  if (tensor.data.size() > 1 << 16) return;
  try_to([&] { onnx::to_int64s(tensor); });
  try_to([&] { onnx::to_doubles(tensor); });
  if (tensor.type == onnx::DataType::float32 && tensor.data.size() > 0) {
    std::size_t seen = 0;
    onnx::for_each_float(tensor.data, [&](auto values, auto first) {
      require(static_cast<std::size_t>(first) == seen, "pieces come in order");
      seen += values.size();
    });
    require(4 * seen == tensor.data.size(), "all elements are passed on");
  }
}

void run_tensor(Bytes input) {
  try_to([&] {
    onnx::ExternalFiles files(external_folder() / "model.onnx");
    const onnx::Tensor tensor = onnx::read_tensor(onnx::Wire::own(std::string(as_text(input))), nullptr, files, "'x'");
    check(tensor);
    onnx::ExternalFiles none(folder() / "nothing" / "model.onnx");
    if (tensor.is_external && tensor.data.size() == 0) return;
    const std::string inlined = onnx::encode_tensor(tensor);
    onnx::Tensor again;
    require(try_to([&] { again = onnx::read_tensor(onnx::Wire::own(inlined), nullptr, none, "'y'"); }),
            "a tensor that was written can be read");
    require(std::ranges::equal(again.data.bytes(), tensor.data.bytes()), "a tensor reads back as it was written");
  });
}

const Registered tensor_target{{"tensor", run_tensor, {&kTensor}}};

// Messages in which tensors stand anywhere: once their data are inline, nothing refers to a file any more.

using onnx::Message;

constexpr Message kMessages[] = {Message::graph,         Message::node,     Message::attribute,    Message::tensor,
                                 Message::sparse_tensor, Message::function, Message::training_info};
constexpr std::uint64_t kLimit = 400;

void run_external(Bytes input) {
  Parts parts(input);
  const Message kind = kMessages[parts.byte() % std::size(kMessages)];
  const auto raw = onnx::Wire::own(std::string(as_text(parts.rest())));
  try_to([&] {
    onnx::ExternalFiles files(external_folder() / "model.onnx");
    const auto inlined = onnx::with_damage_as_bad_input(
        "'x'", [&] { return onnx::ExternalInliner(files, "'x'", kLimit).inlined(kind, raw); });
    onnx::ExternalFiles none(folder() / "nothing" / "model.onnx");
    onnx::Wire again;
    require(try_to([&] { again = onnx::ExternalInliner(none, "'y'", 0).inlined(kind, inlined); }),
            "no tensor is external once all are inline");
    require(again.view() == inlined.view(), "what is inline stays as it is");
  });
}

const Registered external_target{
    {"external", run_external, {&kGraph, &kNode, &kAttribute, &kTensor, &kSparseTensor, &kFunction, &kTraining}, 1, 4}};

}  // namespace
}  // namespace detent::fuzz
