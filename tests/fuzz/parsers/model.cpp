// Models: everything that the reader gives is walked, and what is written reads back as the same bytes.
#include "onnx/model.h"
#include "base/text.h"
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/write.h"

namespace detent::fuzz {
namespace {

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
    graph::values_crossing_cut(sorted, index, static_cast<int>(sorted.graph.nodes.size() / 2));
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

void run(Bytes input) {
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

const Registered model{{"model", run, {&kModel}, 0, 8}};

}  // namespace
}  // namespace detent::fuzz
