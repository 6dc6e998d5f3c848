// Feeds arbitrary bytes to the reader of models and walks all that it gives. Anything but detent::Error is a bug, and
// so is a model that reads back differently from what was written.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/bytes.h"
#include "base/file.h"
#include "detent/error.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "onnx/write.h"

namespace {

using detent::onnx::Model;

template <typename Act>
void try_to(Act act) {
  try {
    act();
  } catch (const detent::Error&) {
  }
}

// A file in memory: the reader wants a path.
Model read(const std::string& bytes) {
  const detent::UniqueFd fd(::memfd_create("fuzz.onnx", MFD_CLOEXEC));
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  detent::write_all(fd.get(), detent::as_byte_span(bytes), path);
  return detent::onnx::read_model(path);
}

void walk(const Model& model) {
  for (const auto& node : model.graph.nodes) {
    for (const auto& a : node.attributes()) {
      try_to([&] { a.as_int(); });
      try_to([&] { a.as_floats(); });
      try_to([&] { a.as_ints(); });
      try_to([&] { a.as_string(); });
      try_to([&] { detent::onnx::read_attribute_tensor(model, node, a); });
    }
    try_to([&] { detent::graph::captured_names(model, node); });
  }
  try_to([&] {
    Model sorted = model;
    detent::graph::sort_topologically(sorted);
    const detent::graph::Index index(sorted);
    detent::graph::depends_on_input(sorted, index);
    detent::graph::frontier(sorted, index, static_cast<int>(sorted.graph.nodes.size() / 2));
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file(reinterpret_cast<const char*>(data), size);
  try_to([&] {
    const Model model = read(file);
    walk(model);
    // Fields may stand in any order in the file; once written they have one.
    const std::string once = detent::onnx::encode_model(model, nullptr);
    Model again;
    try {
      again = read(once);
    } catch (const detent::Error&) {
      std::abort();
    }
    if (detent::onnx::encode_model(again, nullptr) != once) std::abort();
  });
  return 0;
}
