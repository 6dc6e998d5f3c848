#include "planning/memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/numbers.h"
#include "base/text.h"
#include "graph/traits.h"

namespace detent::planning {

std::uint64_t spool_buffers(std::uint64_t bytes_of_sample) { return std::min(kMostBuffers, 3 * bytes_of_sample); }

std::uint64_t resident_bytes(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                             const onnx::Tensor& weight) {
  constexpr std::uint64_t kGatheredRow = 64 * kKiB;  // pages that reading one row of a table makes resident
  const auto readers = index.consumers(weight.name);
  const bool is_table = !readers.empty() && std::all_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return graph::has_trait(node, graph::Trait::looks_up) && node.inputs().front() == weight.name;
  });
  if (!is_table) return weight.data.size();
  std::uint64_t bytes = 0;
  for (const int reader : readers) {
    const auto& indices = model.graph.nodes[static_cast<std::size_t>(reader)].inputs().at(1);
    const std::uint64_t rows = graph::static_bytes(types, indices).value_or(0) / sizeof(std::int64_t);
    bytes += std::min<std::uint64_t>(rows * kGatheredRow, weight.data.size());
  }
  return bytes;
}

std::uint64_t convolution_weights(const onnx::Model& model, const graph::Index& index, const onnx::Node& node) {
  if (!node.is("Conv") || node.inputs().size() < 2) return 0;
  const int weight = index.initializer(node.inputs()[1]);
  return weight == graph::kNone ? 0 : model.graph.initializers[static_cast<std::size_t>(weight)].data.size();
}

std::uint64_t convolution_weights(const onnx::Model& model) {
  const graph::Index index(model);
  std::uint64_t bytes = 0;
  for (const auto& node : model.graph.nodes) bytes += convolution_weights(model, index, node);
  return bytes;
}

std::uint64_t copied_weights(const onnx::Model& model) { return channel_block() > 0 ? convolution_weights(model) : 0; }

graph::Workspace workspace_of(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              bool blocked) {
  return [&model, &index, &types, blocked](const onnx::Node& node, bool kept) -> std::uint64_t {
    if (node.inputs().size() < 2) return 0;
    const std::uint64_t input = graph::static_bytes(types, node.inputs()[0]).value_or(0);
    if (node.is("Conv")) return blocked && kept ? input : 0;
    const int weight = index.initializer(node.inputs()[1]);
    if (!node.is("ConvTranspose") || weight == graph::kNone) return 0;
    const auto& tensor = model.graph.initializers[static_cast<std::size_t>(weight)];
    const auto channels = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.dims.front(), 1));
    // Pixels of one channel, times the weights of one input channel.
    return input / channels * (static_cast<std::uint64_t>(tensor.count()) / channels);
  };
}

namespace {

constexpr std::int64_t kReordersBy = 4;  // the runtime's changes of layout take this many channels at a time

std::int64_t padded(std::int64_t channels, std::int64_t block) { return (channels + block - 1) / block * block; }

// The runtime's own choice of the convolutions that it runs in blocks.
struct Blocked {
  bool result = false;
  bool input = false;  // a few channels, as of an image, are read as they are
  std::int64_t inputs = 0, outputs = 0;
};

Blocked blocked(const onnx::Node& node, const std::vector<std::int64_t>& weight, std::int64_t block) {
  if (weight.size() != 4) return {};
  const std::int64_t groups = node.int_or("group", 1);
  const std::int64_t outputs = weight[0];
  const std::int64_t inputs = weight[1];
  if (groups == 1) {
    if (inputs < block) return {true, false, inputs, outputs};
    return {inputs % kReordersBy == 0, true, inputs, outputs};
  }
  const bool depthwise = inputs == 1 && outputs == groups;
  const bool whole_blocks = inputs % block == 0 && outputs % groups == 0 && outputs / groups % block == 0;
  return {outputs % kReordersBy == 0 && (depthwise || whole_blocks), true, inputs * groups, outputs};
}

class Rewriter {
 public:
  Rewriter(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
           const std::vector<std::string>& observed, std::int64_t block)
      : index_(index), observed_(observed.begin(), observed.end()), block_(block), result_{model, types} {
    result_.model.graph.nodes.clear();
    for (const auto& node : model.graph.nodes) {
      const int weight = node.is("Conv") && block > 0 ? index.initializer(node.inputs().at(1)) : graph::kNone;
      const auto form = weight == graph::kNone
                            ? Blocked()
                            : blocked(node, model.graph.initializers[static_cast<std::size_t>(weight)].dims, block);
      if (form.result) {
        add_blocked(node, form);
      } else {
        add(node);
      }
    }
  }

  Executed result() && {
    auto& nodes = result_.model.graph.nodes;
    const auto order = graph::execution_order(result_.model, graph::Index(result_.model));
    std::vector<onnx::Node> sorted;
    for (const int n : order) sorted.push_back(std::move(nodes[static_cast<std::size_t>(n)]));
    nodes = std::move(sorted);
    return std::move(result_);
  }

 private:
  void add(onnx::Node node) {
    // Reshapes take no memory; the others have kernels that may write over an input, which is done where the planner of
    // the runtime knows that input and output have one shape: not beyond an observer, of whose output it knows none.
    const auto& traits = graph::traits_of(node);
    const bool overwrites =
        traits.is(graph::Trait::overwrites) && !node.inputs().empty() && !observed_.contains(node.inputs().front());
    const bool known = traits.is(graph::Trait::renames) || node.is("ConvTranspose") || overwrites;
    if (!known) node.set_op_type("computes " + node.op_type());
    result_.model.graph.nodes.push_back(std::move(node));
  }

  // A value beside `original`, with the channels padded to whole blocks.
  std::string add_blocked_value(const std::string& original, std::int64_t channels) {
    std::string name = index_.fresh_name(original + " in blocks");
    const auto found = result_.types.find(original);
    if (found == result_.types.end()) return name;
    auto type = found->second;
    if (type.shape && type.shape->size() > 1) (*type.shape)[1].value = padded(channels, block_);
    result_.types[name] = std::move(type);
    return name;
  }

  void add_blocked(const onnx::Node& node, const Blocked& form) {
    auto& nodes = result_.model.graph.nodes;
    auto inputs = node.inputs();
    if (form.input) {
      auto& reordered = reordered_[inputs.front()];
      if (reordered.empty()) {
        reordered = add_blocked_value(inputs.front(), form.inputs);
        nodes.emplace_back("ReorderInput", "", std::vector{inputs.front()}, std::vector{reordered});
      }
      inputs.front() = reordered;
    }
    const std::string& output = node.outputs().front();
    const std::string result = add_blocked_value(output, form.outputs);
    nodes.emplace_back("BlockedConv", node.name(), inputs, std::vector{result});
    nodes.emplace_back("ReorderOutput", "", std::vector{result}, std::vector{output});
  }

  graph::Index index_;
  std::unordered_set<std::string> observed_;
  std::int64_t block_;
  std::unordered_map<std::string, std::string> reordered_;  // plain value -> the same in blocks
  Executed result_;
};

}  // namespace

std::int64_t channel_block() {
#if defined(__x86_64__)
  return has_avx512() ? 16 : has_avx() ? 8 : 0;
#else
  return 0;
#endif
}

Executed as_executed(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const std::vector<std::string>& observed, std::int64_t block) {
  return Rewriter(model, index, types, observed, block).result();
}

namespace {

std::uint64_t resident_weights(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.graph.initializers) bytes += resident_bytes(model, index, types, tensor);
  return bytes;
}

// Bytes of activations alive at one time, nullopt when a shape is not static.
std::optional<std::uint64_t> alive_at_once(const onnx::Model& model, const graph::Index& index,
                                           const graph::ValueTypes& types, const std::vector<std::string>& observed,
                                           bool in_blocks) {
  const Executed executed = as_executed(model, index, types, observed, in_blocks ? channel_block() : 0);
  const graph::Index executed_index(executed.model);
  const auto alive = graph::liveness(executed.model, executed_index, executed.types,
                                     workspace_of(executed.model, executed_index, executed.types, false));
  return alive ? std::optional(alive->peak_bytes) : std::nullopt;
}

}  // namespace

exec::SessionMode session_mode_for(const onnx::Model& model) {
  constexpr std::uint64_t kLittle = 32 * kMiB;
  return convolution_weights(model) <= kLittle ? exec::SessionMode::blocked : exec::SessionMode::lean;
}

bool runs_in_blocks(const onnx::Model& model) {
  return channel_block() > 0 && session_mode_for(model) == exec::SessionMode::blocked;
}

std::uint64_t CalibrationCost::peak_memory() const {
  std::uint64_t sum = 0;
  for (const auto& part : memory) sum += part.bytes;
  return sum;
}

std::uint64_t statistics_bytes(const Circumstances& c) {
  return c.histograms ? c.workers * (kHistogram * c.observed + c.threads * kScratch) : 0;
}

std::optional<CalibrationCost> calibration_cost(const onnx::Model& model, const graph::ValueTypes& types,
                                                const std::vector<std::string>& observed, const Circumstances& c) {
  const graph::Index index(model);
  const bool blocked = runs_in_blocks(model);
  const auto alive = alive_at_once(model, index, types, observed, blocked);
  if (!alive) return std::nullopt;
  CalibrationCost cost;
  for (const auto& node : model.graph.nodes) {
    const auto work = graph::work_of(model, index, types, node);
    if (work) cost.work += *work;
  }
  for (const auto& value : observed)
    cost.observed_elements += graph::static_bytes(types, value).value_or(0) / sizeof(float);

  const std::uint64_t workers = c.workers, mapped = resident_weights(model, index, types);
  const std::uint64_t in_blocks = blocked ? convolution_weights(model) : 0;
  cost.weights = mapped + in_blocks;
  cost.activations = workers * *alive;
  cost.memory = {
      {"detent and ONNX Runtime", kProcess},
      {"session", kSessionNode * (model.graph.nodes.size() + observed.size())},
      {"weights, mapped from the file", mapped},
      {"convolution weights in blocked layout", in_blocks},
      {"activations alive at once", cost.activations},
      {"samples", workers * c.sample_bytes},
      {"statistics", statistics_bytes(c)},
  };
  if (c.beside > 0) cost.memory.push_back({"trials", c.beside});
  return cost;
}

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> read_number(const fs::path& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;  // "max" too
  return value;
}

// A value of a file of "name value" lines, as memory.stat and /proc/meminfo are.
std::optional<std::uint64_t> read_entry(const fs::path& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t value = 0;
    if (words >> key >> value && key == name) return value;
  }
  return std::nullopt;
}

std::uint64_t left(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> used,
                   std::optional<std::uint64_t> droppable) {
  if (!limit || !used) return kUnlimited;
  const std::uint64_t held = *used - std::min(*used, droppable.value_or(0));
  return *limit - std::min(*limit, held);
}

// The limits of a group bind those below it, so all on the way to the root count.
std::uint64_t left_in_cgroups() {
  std::uint64_t least = kUnlimited;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // Texts: libstdc++ frees what it has not allocated when it cannot append to a path for lack of memory.
    for (std::string group = line.substr(second + 1);; group.resize(group.rfind('/'))) {
      if (group.find_last_not_of('/') == std::string::npos || group.front() != '/') group.clear();
      const std::string at = root + group + "/memory.";
      least = std::min(least, v2 ? left(read_number(at + "max"), read_number(at + "current"),
                                        read_entry(at + "stat", "inactive_file"))
                                 : left(read_number(at + "limit_in_bytes"), read_number(at + "usage_in_bytes"),
                                        read_entry(at + "stat", "total_inactive_file")));
      if (group.empty()) break;
    }
  }
  return least;
}

// Where there is no /proc.
std::uint64_t unused_memory() {
  const long pages = ::sysconf(_SC_AVPHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : kUnlimited;
}

}  // namespace

std::uint64_t available_memory() {
  const auto machine = read_entry("/proc/meminfo", "MemAvailable:");
  return std::min(machine ? *machine * kKiB : unused_memory(), left_in_cgroups());
}

std::uint64_t free_disk(const fs::path& directory) {
  std::error_code failed;
  const auto space = fs::space(directory, failed);
  return failed ? 0 : space.available;
}

Error over_budget(std::string_view what, std::uint64_t needed, std::uint64_t budget) {
  const auto [need, left] = format_sizes(needed, budget);
  return resource_error(fmt::format("{} needs {} of memory, and the budget is {}", what, need, left),
                        fmt::format("the smallest --memory-budget that works is {}MiB", needed / kMiB + 1));
}

}  // namespace detent::planning
