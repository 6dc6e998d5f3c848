#include "run/model/automatic_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "exec/providers.h"

namespace detent::run {
namespace {

using Row = std::pair<std::string_view, std::string_view>;

constexpr std::array<Row, 7> kRows{{{"QNNExecutionProvider", "qnn"},
                                    {"OpenVINOExecutionProvider", "openvino"},
                                    {"NvTensorRTRTXExecutionProvider", "tensorrt"},
                                    {"TensorrtExecutionProvider", "tensorrt"},
                                    {"VitisAIExecutionProvider", "amd-npu:xint8"},
                                    {"CoreMLExecutionProvider", "coreml"},
                                    {"XnnpackExecutionProvider", "xnnpack"}}};

}  // namespace

std::span<const Row> targets_of_providers() { return kRows; }

NamedTarget automatic_target(const std::optional<std::filesystem::path>& runtime) {
  const auto providers = exec::available_providers(runtime);
  const auto& names = providers.names;
  for (const auto& [provider, name] : kRows) {
    if (std::find(names.begin(), names.end(), provider) == names.end()) continue;
    return {std::string(name), fmt::format("--target auto: {}, since {} has {}", name, providers.runtime, provider)};
  }
  return {"ort-cpu", fmt::format("--target auto: ort-cpu, since {} has no provider of another target (it has {})",
                                 providers.runtime, fmt::join(names, ", "))};
}

}  // namespace detent::run
