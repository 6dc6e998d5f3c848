// Nodes and their attributes, read by each accessor, changed and written.
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/model.h"
#include "onnx/tensor.h"

namespace detent::fuzz {
namespace {

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

void change(Node node) {
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

void run(Bytes input) {
  try_to([&] {
    onnx::Model model;
    model.path = external_folder() / "model.onnx";
    model.external = std::make_shared<onnx::ExternalFiles>(model.path);
    const auto node =
        onnx::with_damage_as_bad_input("'x'", [&] { return Node(onnx::Wire::own(std::string(as_text(input)))); });
    for (const auto& attribute : node.attributes()) read(model, node, attribute);
    require(node.attribute("no such attribute\n") == nullptr || !node.attributes().empty(),
            "nothing has no attributes");
    change(node);
  });
}

const Registered attribute{{"attribute", run, {&kNode}, 0, 10}};

}  // namespace
}  // namespace detent::fuzz
