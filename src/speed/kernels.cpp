#include "speed/kernels.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"
#include "base/paths.h"
#include "config/enum_names.h"
#include "data/given_inputs.h"
#include "exec/timing.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/placement.h"
#include "quantization/placement/value_kinds.h"

namespace detent::speed {
namespace {

using graph::Trait;

constexpr double kSecondsEach = 0.05;  // of runs, but three at the least
constexpr std::size_t kRuns = 40;

std::string text_of(const onnx::Attribute& a) {
  using Kind = onnx::Attribute::Kind;
  switch (a.kind()) {
    case Kind::f: return fmt::format("{}={}", a.name(), a.as_float());
    case Kind::i: return fmt::format("{}={}", a.name(), a.as_int());
    case Kind::s: return fmt::format("{}={}", a.name(), a.as_string());
    case Kind::ints: return fmt::format("{}={}", a.name(), fmt::join(a.as_ints(), "x"));
    case Kind::floats: return fmt::format("{}={}", a.name(), fmt::join(a.as_floats(), "x"));
    default: return a.name();
  }
}

// What of the format decides which kernels the runtime has; empty for the default one.
std::string format_of(const QuantConfig& config) {
  const QuantConfig usual;
  const auto word = [](QuantType type) {
    return config::word_of(config::enum_names<QuantType>(), static_cast<int>(type));
  };
  std::string text = config.per_channel ? "" : " per tensor";
  if (config.activation_type != usual.activation_type || config.weight_type != usual.weight_type)
    text += fmt::format(" {} by {}", word(config.activation_type), word(config.weight_type));
  return text;
}

bool is_activation(const TimedModel& subject, const std::string& value) {
  return !value.empty() && subject.index.initializer(value) == graph::kNone;
}

// In the place of a table: what a row takes does not depend on how many there are.
onnx::Tensor rows_of(const onnx::Tensor& table) {
  const std::int64_t rows = 2, width = table.dims.back();
  return onnx::make_tensor<float>(table.name, onnx::DataType::float32, {rows, width},
                                  std::vector<float>(static_cast<std::size_t>(rows * width), 1.0F));
}

// The node as a model, with the shapes of its values.
onnx::Model model_of_node(const TimedModel& subject, std::size_t position) {
  const auto& model = subject.model;
  const auto& node = model.graph.nodes[position];
  onnx::Model part;
  part.path = model.path;
  part.file = model.file;
  part.external = model.external;
  part.ir_version = model.ir_version;
  part.opsets = model.opsets;
  part.other = model.other;
  part.graph.nodes = {node};
  const auto info = [&](const std::string& value) {
    return onnx::make_value_info(value, graph::type_of(model, subject.types, value), subject.types.at(value).shape);
  };
  std::vector<std::string> seen;
  for (const auto& value : node.inputs()) {
    if (value.empty() || std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
    seen.push_back(value);
    if (is_activation(subject, value)) {
      part.graph.inputs.push_back(info(value));
    } else {
      const auto& constant = model.graph.initializers[static_cast<std::size_t>(subject.index.initializer(value))];
      part.graph.initializers.push_back(quantization::is_table(node, subject.index) ? rows_of(constant) : constant);
    }
  }
  for (const auto& value : node.outputs()) {
    if (!value.empty()) part.graph.outputs.push_back(info(value));
  }
  return part;
}

onnx::Model in_integers(const onnx::Model& part, const graph::ValueTypes& types, const QuantConfig& given) {
  QuantConfig config = given;
  config.nodes.clear();
  config.exclude_nodes.clear();
  config.op_types = {part.graph.nodes.front().op_type()};
  config.exclude_op_types.clear();
  if (part.graph.nodes.front().is("LSTM")) return quantization::make_dynamic(part, config, true).model;
  auto placement = quantization::place(part, types, config);
  quantization::Proposals proposals;
  for (const auto& value : placement.to_observe()) proposals.ranges[value] = {{-1, 1}, {}};
  for (const auto& [value, range] : placement.fixed_ranges) proposals.ranges[value] = {range, {}};
  proposals.constants = quantization::scan_weights(part, placement, true);
  const auto assignment = quantization::assign(part, std::move(placement), proposals, config);
  return quantization::emit_qdq({part}, assignment).model;
}

std::vector<data::Array> synthetic(const TimedModel& subject, const onnx::Model& part) {
  std::vector<data::InputSpec> inputs;
  for (const auto& input : part.graph.inputs)
    inputs.push_back({input.name, graph::type_of(subject.model, subject.types, input.name),
                      graph::static_shape(subject.types, input.name)});
  return data::synthetic_inputs(inputs, {});
}

bool changes_layout(const exec::Kernel& kernel) {
  return kernel.op_type == "Transpose" || kernel.op_type == "ReorderInput" || kernel.op_type == "ReorderOutput";
}

}  // namespace

std::string kernel_table_key(const TimedModel& subject, std::size_t position) {
  const auto& node = subject.model.graph.nodes[position];
  const bool is_arithmetic = graph::has_trait(node, Trait::element_wise) && !graph::has_trait(node, Trait::clips);
  if (!graph::is_product(node) && !is_arithmetic && !node.is("LSTM")) return {};
  std::vector<std::string> inputs, attributes;
  for (const auto& value : node.inputs()) {
    if (value.empty()) {
      inputs.emplace_back("-");
      continue;
    }
    const auto shape = graph::static_shape(subject.types, value);
    const bool computed = is_activation(subject, value);
    if (!shape) return {};
    // The runtime tells an unknown rank as 0.
    const bool known =
        !shape->empty() && graph::type_of(subject.model, subject.types, value) == onnx::DataType::float32;
    if (computed && !known) return {};
    inputs.push_back(fmt::format("{}[{}]", computed ? "" : "constant", fmt::join(*shape, "x")));
  }
  for (const auto& value : node.outputs()) {
    if (!value.empty() && !graph::static_shape(subject.types, value)) return {};
  }
  for (const auto& a : node.attributes()) attributes.push_back(text_of(a));
  std::sort(attributes.begin(), attributes.end());
  return fmt::format("{}({}) {}{}", node.op_type(), fmt::join(inputs, ", "), fmt::join(attributes, " "),
                     format_of(subject.config));
}

std::string lookup_key(const TimedModel& subject, std::size_t position) {
  const auto& node = subject.model.graph.nodes[position];
  if (!quantization::is_table(node, subject.index) || node.int_or("axis", 0) != 0) return {};
  const auto& table =
      subject.model.graph.initializers[static_cast<std::size_t>(subject.index.initializer(node.inputs()[0]))];
  const auto shape = graph::static_shape(subject.types, node.inputs()[1]);
  if (!shape || shape->empty() || table.dims.size() != 2 || table.type != onnx::DataType::float32) return {};
  if (subject.index.initializer(node.inputs()[1]) != graph::kNone) return {};
  return fmt::format("{}(rows of {}, [{}]){}", node.op_type(), table.dims[1], fmt::join(*shape, "x"),
                     format_of(subject.config));
}

namespace {

exec::KernelTimesOptions timing(const std::filesystem::path& directory, std::stop_token stop) {
  return {.threads = 1,
          .runs = kRuns,
          .seconds = kSecondsEach,
          .fastest = true,
          .directory = directory,
          .stop = std::move(stop)};
}

}  // namespace

double time_form(const TimedModel& subject, std::size_t position,
                 const std::function<onnx::Model(onnx::Model alone)>& make, const exec::Runtime& runtime,
                 const std::filesystem::path& directory, std::stop_token stop) {
  auto part = model_of_node(subject, position);
  const std::vector<std::vector<data::Array>> samples{synthetic(subject, part)};
  double seconds = 0;
  for (const auto& kernel :
       exec::kernel_times(runtime, make(std::move(part)), samples, timing(directory, std::move(stop))))
    seconds += kernel.seconds;
  return seconds;
}

KernelTimes time_kernel(const TimedModel& subject, std::size_t position, const exec::Runtime& runtime,
                        const std::filesystem::path& directory, std::stop_token stop) {
  const auto part = model_of_node(subject, position);
  const std::vector<std::vector<data::Array>> samples{synthetic(subject, part)};
  const auto options = timing(directory, std::move(stop));
  KernelTimes times;
  if (std::ranges::any_of(samples.front(), [](const auto& array) { return array.bytes.empty(); })) {
    times.in_integers = 1e-6;  // of no elements, none of which integers would compute faster
    return times;
  }
  bool done = false;  // the operator itself
  for (const auto& kernel : exec::kernel_times(runtime, part, samples, options)) {
    (!changes_layout(kernel) ? times.in_float : done ? times.out_of_blocks : times.into_blocks) += kernel.seconds;
    done = done || !changes_layout(kernel);
  }
  done = false;
  const auto quantized = in_integers(part, subject.types, subject.config);
  for (const auto& kernel : exec::kernel_times(runtime, quantized, samples, options)) {
    const bool quantizes = kernel.op_type == "QuantizeLinear", dequantizes = kernel.op_type == "DequantizeLinear";
    if (!done && (quantizes || changes_layout(kernel))) {
      times.quantize += kernel.seconds;
    } else if (done && (dequantizes || changes_layout(kernel))) {
      times.dequantize += kernel.seconds;
    } else {
      // Where the runtime has no integer kernel, weights and activations are dequantized in every run.
      times.in_integers += kernel.seconds;
    }
    done = done || !(quantizes || dequantizes || changes_layout(kernel));
  }
  return times;
}

namespace fs = std::filesystem;

namespace {

constexpr const char* kFormat = "detent kernel times 1";
constexpr double kMicrosecond = 1e-6;

KernelTimes from_json(const nlohmann::json& row) {
  const auto seconds = [&](const char* name) { return kMicrosecond * row.at(name).get<double>(); };
  return {seconds("float"),      seconds("integers"),    seconds("quantize"),
          seconds("dequantize"), seconds("into_blocks"), seconds("out_of_blocks")};
}

// To the hundredth of a microsecond: what is read back is what was written.
double microseconds(double seconds) {
  return std::strtod(fmt::format("{:.2f}", seconds / kMicrosecond).c_str(), nullptr);
}

nlohmann::json to_json(const KernelTimes& times) {
  return {{"float", microseconds(times.in_float)},          {"integers", microseconds(times.in_integers)},
          {"quantize", microseconds(times.quantize)},       {"dequantize", microseconds(times.dequantize)},
          {"into_blocks", microseconds(times.into_blocks)}, {"out_of_blocks", microseconds(times.out_of_blocks)}};
}

constexpr double kMostSeconds = 1e6;

bool are_times(const KernelTimes& times) {
  const auto all = {times.in_float,   times.in_integers, times.quantize,
                    times.dequantize, times.into_blocks, times.out_of_blocks};
  return std::all_of(all.begin(), all.end(), [](double time) { return time >= 0 && time <= kMostSeconds; });
}

std::string name_from_json(const nlohmann::json& entry) {
  auto name = name_of_json(entry);
  if (!name) throw nlohmann::json::type_error::create(302, "no name", &entry);
  return std::move(*name);
}

ModelChoice choice_from_json(const nlohmann::json& row) {
  const auto seconds = [](const nlohmann::json& time) { return kMicrosecond * time.get<double>(); };
  ModelChoice choice{
      {}, seconds(row.at("time")), seconds(row.at("integers")), seconds(row.at("float")), seconds(row.at("dynamic"))};
  for (const auto& entry : row.at("in_float")) choice.in_float.push_back(name_from_json(entry));
  for (const auto& entry : row.at("added")) choice.added[name_from_json(entry.at(0))] = seconds(entry.at(1));
  return choice;
}

nlohmann::json to_json(const ModelChoice& choice) {
  auto names = nlohmann::json::array(), added = nlohmann::json::array();
  for (const auto& node : choice.in_float) names.push_back(json_of_name(node));
  for (const auto& [node, seconds] : choice.added) added.push_back({json_of_name(node), microseconds(seconds)});
  return {{"time", microseconds(choice.seconds)},
          {"integers", microseconds(choice.seconds_on_integers)},
          {"float", microseconds(choice.seconds_in_float)},
          {"dynamic", microseconds(choice.seconds_dynamic)},
          {"in_float", std::move(names)},
          {"added", std::move(added)}};
}

bool are_times(const ModelChoice& choice) {
  const auto is_time = [](double time) { return time >= 0 && time <= kMostSeconds; };
  return is_time(choice.seconds) && is_time(choice.seconds_on_integers) && is_time(choice.seconds_in_float) &&
         is_time(choice.seconds_dynamic) &&
         std::all_of(choice.added.begin(), choice.added.end(), [&](const auto& node) { return is_time(node.second); });
}

// The processors as the kernel names them, each kind once: ARM's may be of several in one machine.
std::string machine() {
  constexpr const char* kTold[] = {"model name",  "flags",    "Features",    "CPU implementer",
                                   "CPU variant", "CPU part", "CPU revision"};
  std::ifstream file("/proc/cpuinfo");
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) {
    const bool told =
        std::any_of(std::begin(kTold), std::end(kTold), [&](const char* name) { return line.starts_with(name); });
    if (told && std::find(found.begin(), found.end(), line) == found.end()) found.push_back(line);
  }
  return fmt::format("{}{}", fmt::join(found, ""), instruction_sets());
}

Error cannot_write(const fs::path& file, const std::string& why) {
  return usage_error(fmt::format("cannot write the kernel table '{}': {}", file.string(), why),
                     "give another file with --set kernel-table");
}

bool is_open_at(int fd, const fs::path& file) {
  struct stat opened {};
  struct stat there {};
  return ::fstat(fd, &opened) == 0 && ::lstat(file.c_str(), &there) == 0 && opened.st_dev == there.st_dev &&
         opened.st_ino == there.st_ino;
}

// The table itself, open and this process's own until it is closed or replaced; empty where there was none. Another
// process holds it for as long as it takes to write some lines.
UniqueFd locked(const fs::path& file, const std::stop_token& stop) {
  constexpr auto kPatience = std::chrono::seconds(10);
  constexpr auto kPause = std::chrono::milliseconds(20);
  for (const auto start = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - start < kPatience;) {
    if (stop.stop_requested()) throw interrupted();
    UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
    if (!fd.valid()) throw cannot_write(file, errno_text(errno));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_open_at(fd.get(), file)) return fd;
    } else if (errno == EWOULDBLOCK) {
      std::this_thread::sleep_for(kPause);
    } else if (errno != EINTR) {
      throw cannot_write(file, errno_text(errno));
    }
  }
  throw cannot_write(file, fmt::format("another process has held it for {} seconds", kPatience.count()));
}

}  // namespace

std::string text_of(const ModelChoice& choice) { return json_text(to_json(choice)); }

std::optional<ModelChoice> choice_of(const std::string& text) {
  const auto json = parse_json(text);
  if (!json) return std::nullopt;
  try {
    return choice_from_json(*json);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

KernelTable::KernelTable(std::optional<fs::path> file) : file_(std::move(file)) { read(); }

void KernelTable::read() {
  if (!file_ || !paths::exists(*file_)) return;
  const auto text = read_small_file(*file_, "the kernel table");
  if (text.empty()) return;  // another process is about to write it, or was
  const auto refused = [&] {
    return bad_input(fmt::format("'{}' is not a table of kernel times", file_->string()),
                     "remove it, and it is measured anew; or give another with --set kernel-table");
  };
  const auto json = parse_json(text);
  if (!json) throw refused();
  double longest = 0;
  try {
    if (json->at("format") != kFormat || !json->at("kernels").is_object()) throw refused();
    for (const auto& [kernel, row] : json->at("kernels").items()) {
      const auto times = from_json(row);
      if (!are_times(times)) throw refused();
      longest = std::max(longest, times.in_float);
      times_.insert_or_assign(kernel, times);
    }
    const auto models = json->value("models", nlohmann::json::object());
    for (const auto& [model, row] : models.items()) {
      auto choice = choice_from_json(row);
      if (!are_times(choice)) throw refused();
      choices_.insert_or_assign(model, std::move(choice));
    }
    if (!json->at("kernels").empty() && longest <= 0)
      throw bad_input(fmt::format("the times in '{}' are all 0, and tell nothing", file_->string()),
                      "remove it, and it is measured anew; or give another with --set kernel-table");
  } catch (const nlohmann::json::exception&) {
    throw refused();
  }
}

const KernelTimes* KernelTable::find(const std::string& kernel) const {
  const auto found = times_.find(kernel);
  return found == times_.end() ? nullptr : &found->second;
}

const ModelChoice* KernelTable::find_choice(const std::string& model) const {
  const auto found = choices_.find(model);
  return found == choices_.end() ? nullptr : &found->second;
}

void KernelTable::save(const std::stop_token& stop) {
  // Rounded as in the file also where there is none: a decision is the same before and after.
  for (auto& [kernel, times] : times_) times = from_json(to_json(times));
  for (auto& [model, choice] : choices_) choice = choice_from_json(to_json(choice));
  if (!file_) return;
  if (file_->has_parent_path()) {
    std::error_code ignored;
    fs::create_directories(file_->parent_path(), ignored);
  }
  check_replaceable(*file_);
  const auto lock = locked(*file_, stop);
  try {
    write();
  } catch (...) {
    struct stat info {};
    if (::fstat(lock.get(), &info) == 0 && info.st_size == 0) ::unlink(file_->c_str());  // it was made for the lock
    throw;
  }
}

void KernelTable::write() {
  read();
  nlohmann::json kernels = nlohmann::json::object();
  for (const auto& [kernel, times] : times_) kernels[kernel] = to_json(times);
  nlohmann::json content{{"format", kFormat}, {"kernels", kernels}};
  for (const auto& [model, choice] : choices_) content["models"][model] = to_json(choice);
  AtomicFile out(*file_);
  const std::string text = json_text(content, 1) + "\n";
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

std::optional<fs::path> default_kernel_table(const std::string& runtime_version) {
  const auto folder = []() -> std::optional<fs::path> {
    if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') return cache;
    if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') return fs::path(home) / ".cache";
    return std::nullopt;
  }();
  if (!folder) return std::nullopt;
  Hasher hasher;
  hasher.add(machine());
  return *folder / "detent" / fmt::format("kernels-{}-{}.json", runtime_version, hasher.result().text().substr(0, 12));
}

}  // namespace detent::speed
