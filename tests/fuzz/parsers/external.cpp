// Messages in which tensors stand anywhere: once their data are inline, nothing refers to a file any more.
#include "fuzz/fuzz.h"
#include "fuzz/kinds.h"
#include "onnx/model_read.h"
#include "onnx/tensor.h"

namespace detent::fuzz {
namespace {

using onnx::Message;

constexpr Message kMessages[] = {Message::graph,         Message::node,     Message::attribute,    Message::tensor,
                                 Message::sparse_tensor, Message::function, Message::training_info};
constexpr std::uint64_t kLimit = 400;

void run(Bytes input) {
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

const Registered external{
    {"external", run, {&kGraph, &kNode, &kAttribute, &kTensor, &kSparseTensor, &kFunction, &kTraining}, 1, 4}};

}  // namespace
}  // namespace detent::fuzz
