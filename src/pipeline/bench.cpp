#include "detent/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "base/parallel.h"
#include "config/presets.h"
#include "config/validate.h"
#include "data/given_inputs.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "exec/timing.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"
#include "run/command.h"
#include "run/comparison/latency.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/samples/samples.h"

namespace detent {
namespace {

using Inputs = std::vector<data::Array>;

constexpr std::size_t kMostSamples = 16;

// One of the models, loaded, with its own view of the samples.
struct Entry {
  onnx::Model model;
  std::vector<data::InputSpec> inputs;
  std::optional<exec::Session> session;
  std::vector<Inputs> samples;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), runtime_(options.runtime) {}

  BenchResult run() {
    result_.threads = static_cast<int>(thread_count(options_.threads));
    result_.runtime = runtime_.version();
    for (const auto& path : options_.models) {
      Entry entry{onnx::read_model(run::model_file(path)), {}, {}, {}};
      graph::require_room(entry.model, options_.resources.memory_budget);
      entry.inputs = run::input_specs(entry.model);
      auto& benched = result_.models.emplace_back();
      benched.model = path;
      benched.bytes = run::size_on_disk(entry.model);
      entries_.push_back(std::move(entry));
    }
    read_samples();
    if (options_.memory && !options_.program.empty()) measure_memory();
    load();
    time_models();
    if (options_.by_operator) time_operators();
    time_one_token();
    return std::move(result_);
  }

 private:
  bool has_samples() const { return config::has_samples(options_); }

  // A stream may pass only once: the others take the first model's samples, input by input.
  void read_samples() {
    result_.synthetic = !has_samples();
    for (auto& entry : entries_) {
      if (result_.synthetic) {
        entry.samples.push_back(
            data::synthetic_inputs(entry.inputs, options_.config.input_shapes, options_.input_values, {.cached = 0}));
      } else if (options_.samples != nullptr && &entry != &entries_.front()) {
        entry.samples = in_order_of(entry);
      } else {
        const auto source = run::open_samples(options_, entry.inputs);
        entry.samples = run::first_samples(*source, options_.max_samples > 0 ? options_.max_samples : kMostSamples);
      }
      if (entry.samples.empty()) throw bad_input("there are no samples");
    }
    result_.samples = entries_.front().samples.size();
  }

  std::vector<Inputs> in_order_of(const Entry& entry) const {
    const auto& first = entries_.front();
    std::vector<Inputs> samples(first.samples.size());
    for (const auto& input : entry.inputs) {
      const auto found = std::find_if(first.inputs.begin(), first.inputs.end(),
                                      [&](const data::InputSpec& spec) { return spec.name == input.name; });
      if (found == first.inputs.end())
        throw bad_input(fmt::format("model '{}' has an input '{}', and the samples have none for it",
                                    entry.model.path.string(), input.name));
      for (std::size_t s = 0; s < samples.size(); ++s)
        samples[s].push_back(first.samples[s][static_cast<std::size_t>(found - first.inputs.begin())]);
    }
    for (auto& sample : samples) sample = run::with_cache_of(sample, entry.inputs);
    return samples;
  }

  void load() {
    for (std::size_t m = 0; m < entries_.size(); ++m) {
      told("load", m);
      exec::check_survives(runtime_, run::model_file(options_.models[m]),
                           {.threads = options_.threads,
                            .load_seconds = run::seconds_to_load(options_.resources.time_limit),
                            .stop = options_.stop});
      using Clock = std::chrono::steady_clock;
      const auto start = Clock::now();
      entries_[m].session.emplace(exec::Session::of_file(runtime_, run::model_file(options_.models[m]), deployed()));
      result_.models[m].load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }

  exec::SessionOptions deployed() const { return {exec::SessionMode::deployed, options_.threads, options_.stop, true}; }

  exec::TimingOptions timing() const {
    return {.runs = options_.runs, .seconds = options_.seconds * static_cast<double>(entries_.size())};
  }

  void time_models() {
    told("bench", 0);
    std::vector<exec::Timed> timed;
    for (auto& entry : entries_)
      timed.push_back({[&entry] { return std::move(*entry.session); },
                       fmt::format("model '{}'", entry.model.path.string()), entry.samples});
    const auto all = run::latencies(turns_of(timed));
    for (std::size_t m = 0; m < all.size(); ++m) result_.models[m].latency = all[m];
    if (auto note = run::busy_note(all); !note.empty()) result_.notes.push_back(std::move(note));
  }

  std::vector<run::Turns> turns_of(std::span<const exec::Timed> timed) const {
    try {
      return exec::time_interleaved(timed, timing());
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input || !result_.synthetic) throw;
      throw bad_input(e.what(), "the inputs were made up: give samples by --calibration-data, or shapes by --shape");
    }
  }

  void time_operators() {
    for (std::size_t m = 0; m < entries_.size(); ++m) {
      told("operators", m);
      entries_[m].session.reset();
      const auto kernels =
          exec::kernel_times(runtime_, entries_[m].model, entries_[m].samples,
                             {.threads = options_.threads, .seconds = options_.seconds / 2, .stop = options_.stop});
      result_.models[m].operators = by_operator(kernels);
    }
  }

  void time_one_token() {
    if (!options_.config.input_shapes.empty()) return;
    std::vector<std::filesystem::path> files;
    for (const auto& model : options_.models) files.push_back(run::model_file(model));
    const auto all = run::latencies_of_one_token(runtime_, files, deployed(), timing());
    for (std::size_t m = 0; m < all.size(); ++m)
      result_.notes.push_back(fmt::format("{}: one token with {} in the cache takes {:.3g} ms{}",
                                          options_.models[m].string(), run::kOneToken.cached, 1e3 * all[m].median,
                                          m == 0 ? "" : ", " + run::speed_words(all[m].ratio)));
  }

  static std::vector<OperatorTime> by_operator(const std::vector<exec::Kernel>& kernels) {
    std::map<std::string, OperatorTime> types;
    double all = 0;
    for (const auto& kernel : kernels) {
      auto& type = types[kernel.op_type];
      type.op_type = kernel.op_type;
      ++type.nodes;
      type.seconds += kernel.seconds;
      all += kernel.seconds;
    }
    std::vector<OperatorTime> sorted;
    for (auto& [name, type] : types) {
      type.share = all > 0 ? type.seconds / all : 0;
      sorted.push_back(std::move(type));
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    return sorted;
  }

  // In a process that does nothing else. Its inputs need the shapes only, where they are in this process's memory.
  void measure_memory() {
    for (std::size_t m = 0; m < entries_.size(); ++m) {
      told("memory", m);
      const auto [status, output] = run::run_command(memory_command(m), options_.stop);
      const auto told = parse_json(output);
      if (status == 0 && told && told->is_object() && told->contains("peak_memory_bytes") &&
          told->at("peak_memory_bytes").is_number_unsigned()) {
        result_.models[m].peak_memory = told->at("peak_memory_bytes").get<std::uint64_t>();
      } else {
        result_.notes.push_back(fmt::format("the memory of '{}' was not measured: the process for it ended with {}",
                                            options_.models[m].string(), status));
      }
    }
  }

  std::string memory_command(std::size_t m) const {
    std::string line = run::quoted(options_.program.string()) + " bench --json --no-memory --runs=1";
    if (options_.threads > 0) line += fmt::format(" --threads={}", options_.threads);
    if (options_.runtime) line += " --runtime=" + run::quoted(options_.runtime->string());
    for (const auto& value : options_.input_values) line += " --input=" + run::quoted(value);
    if (options_.calibration_data) {
      line += " --samples=1 --calibration-data=" + run::quoted(options_.calibration_data->string());
      if (options_.batch_size > 0) line += fmt::format(" --batch-size={}", options_.batch_size);
    } else {
      const auto& entry = entries_[m];
      for (std::size_t i = 0; i < entry.inputs.size(); ++i) {
        const auto& shape = entry.samples.front()[i].shape;
        if (!shape.empty())
          line += " --shape=" + run::quoted(fmt::format("{}:{}", entry.inputs[i].name, fmt::join(shape, "x")));
      }
    }
    return line + " -- " + run::quoted(options_.models[m].string()) + " 2>/dev/null";
  }

  void told(const char* stage, std::size_t model) const {
    if (options_.progress) options_.progress(stage, model, entries_.size());
  }

  const BenchOptions& options_;
  exec::Runtime runtime_;
  std::vector<Entry> entries_;
  BenchResult result_;
};

}  // namespace

BenchResult bench(const BenchOptions& options) {
  config::validate(options, config::kBench);
  return run::within_time(options, [](const Options& limited) { return Bench(limited).run(); });
}

}  // namespace detent
