#include "exec/deployed_graph.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_map>

#include "base/file.h"
#include "exec/emit.h"
#include "graph/rewrites/rewrite.h"

namespace detent::exec {
namespace {

// Nodes that the runtime makes anew, in another layout say, get names with an end of their own.
std::string_view stem(std::string_view name) {
  for (const std::string_view mark : {"_token_", "_nchwc", "/MatMulScaleFusion"}) {
    if (const auto at = name.find(mark); at != std::string_view::npos && at > 0) return name.substr(0, at);
  }
  return name;
}

}  // namespace

std::vector<std::string> deployed_op_types(const Runtime& runtime, const onnx::Model& model) {
  const TempDir directory;
  const auto path = directory.path() / "optimized.onnx";
  onnx::Model named = model;
  name_nodes(named);
  SessionOptions options;
  options.tuning = SessionMode::deployed;
  options.threads = 1;
  options.optimized_model = path;
  (void)Session(runtime, emit(named), fmt::format("model '{}'", model.path.string()), options);
  auto optimized = onnx::read_model(path);
  graph::unfold(optimized);
  std::unordered_map<std::string_view, std::string_view> by_name, by_output;
  for (const auto& node : optimized.graph.nodes) by_name[node.name()] = node.op_type();
  for (const auto& node : optimized.graph.nodes) {
    by_name.try_emplace(stem(node.name()), node.op_type());
    for (const auto& output : node.outputs()) by_output[output] = node.op_type();
  }
  const auto found = [](const auto& map, const std::string& key) {
    const auto at = map.find(key);
    return at == map.end() ? std::string() : std::string(at->second);
  };
  std::vector<std::string> types;
  for (const auto& node : named.graph.nodes) {
    auto type = found(by_name, node.name());
    if (type.empty() && !node.outputs().empty()) type = found(by_output, node.outputs().front());
    types.push_back(std::move(type));
  }
  return types;
}

}  // namespace detent::exec
