#include "run/comparison/proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/bytes.h"
#include "base/error.h"
#include "base/paths.h"
#include "config/derived.h"
#include "data/synthetic_inputs.h"
#include "exec/guarded_session.h"
#include "onnx/model.h"
#include "planning/limits.h"
#include "run/deadline.h"
#include "run/files/outputs.h"
#include "run/model/kv_cache.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::run {
namespace {

namespace fs = std::filesystem;

// What a runtime says of operators that it knows without having them for a type.
bool lacks_kernels(const Error& e) {
  const std::string_view text = e.what();
  constexpr std::array kTexts{"Could not find an implementation", "Failed to find kernel", "has no kernel of"};
  return std::any_of(kTexts.begin(), kTexts.end(), [&](const char* words) { return text.find(words) != text.npos; });
}

bool has_died(const Error& e) { return dynamic_cast<const exec::SessionDied*>(&e) != nullptr; }

std::string hint_of(const Error& e, const WeightsOnlyConfig& blocks) {
  if (lacks_kernels(e) && blocks.enabled && blocks.form == WeightForm::qdq)
    return "give --set weights-form=matmul-nbits, which leaves the model's opset as it is";
  return e.hint().empty() ? "leave the named node in float (--exclude-nodes), or choose another format" : e.hint();
}

// The file goes by a temporary name, which says nothing to users.
std::string by_name_of(const fs::path& output, const fs::path& file, std::string text) {
  for (const auto& name : {paths::absolute(file).string(), file.string()}) {
    for (auto at = text.find(name); at != text.npos; at = text.find(name, at + output.string().size()))
      text.replace(at, name.size(), output.string());
  }
  return text;
}

}  // namespace

std::string reason_against_proof(const QuantConfig& config) {
  if (config.float_type == FloatType::bfloat16) return "ONNX Runtime's CPU has no kernels of bfloat16";
  if (config.block_float != BlockFloat::none) return "ONNX Runtime runs it with AMD Quark's operator library alone";
  return {};
}

std::optional<exec::Runtime> runtime_if_there(const QuantizeOptions& options) {
  try {
    return exec::Runtime(options.runtime, options.resources.sample_time_limit);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::device || options.runtime) throw;
    return std::nullopt;
  }
}

exec::GuardOptions guard_options(const QuantizeOptions& options) {
  constexpr double kSecondsToRun = 3000;
  return {.threads = options.threads,
          .load_seconds = seconds_to_load(options.resources.time_limit),
          .run_seconds = options.resources.sample_time_limit.value_or(kSecondsToRun),
          .stop = options.stop,
          .saves_memory = options.resources.memory_budget.has_value()};
}

void Prover::judge(data::SampleSource& source, std::size_t skipped, std::size_t count, KeptFloatRuns* kept) {
  judged_ = Judged{&source, skipped, count, kept};
}

void Prover::operator()(const fs::path& file) {
  prove(file);
  if (check_) check_(file);
}

void Prover::prove(const fs::path& file) {
  if (options_.stop.stop_requested()) throw interrupted();
  if (runtime_ == nullptr) {
    notes_.emplace_back("the written file was not run: there is no ONNX Runtime");
    return;
  }
  if (!has_room(file)) return;
  try {
    if (judged_) {
      const auto tell = [&](std::uint64_t done) {
        if (options_.progress) options_.progress("proof", done, judged_->count);
      };
      tell(0);
      judged_->source->rewind();
      judged_->source->skip(judged_->skipped);
      fidelity_ = deployed_fidelity(*runtime_, options_.model, file, *judged_->source, judged_->count,
                                    guard_options(options_), tell, judged_->kept);
    } else {
      run_once(file);
    }
  } catch (const Error& e) {
    if (!excuse_.empty() && lacks_kernels(e)) {
      notes_.push_back("the written file was not run, but its graph was accepted: " + excuse_);
      return;
    }
    if (e.kind() != ErrorKind::bad_input) throw;
    if (!has_died(e)) check_original();
    throw device_error(fmt::format("the quantized model does not run in ONNX Runtime {}, so nothing was written: {}",
                                   runtime_->version(), by_name_of(options_.output, file, e.what())),
                       hint_of(e, options_.weights_only));
  }
}

// Where no stage before had to load the float model: that the runtime refuses it is no fault of the quantized one.
void Prover::check_original() const {
  try {
    const exec::GuardedSession loaded(*runtime_, options_.model, guard_options(options_));
  } catch (const Error& e) {
    if (!has_died(e) && (e.kind() == ErrorKind::bad_input || e.kind() == ErrorKind::interrupted)) throw;
  }
}

// Read, turned, and packed for kernels, in a process with a runtime of its own.
std::uint64_t Prover::memory_of(const fs::path& file) const {
  constexpr std::uint64_t kProcess = std::uint64_t{40} << 20;
  return kProcess + 3 * size_on_disk(onnx::read_model(file)) + runtime_->peak_activation_bytes();
}

bool Prover::has_room(const fs::path& file) {
  const auto needed = memory_of(file);
  if (needed <= memory_for_samples(options_.resources)) return true;
  notes_.push_back(fmt::format("the written file was not run: it would take about {}", format_size(needed)));
  return false;
}

// A sample where there are some that can be read again.
std::vector<data::Array> Prover::inputs_for(const std::vector<data::InputSpec>& specs, std::string& where) const {
  if (config::has_samples(options_)) {
    if (options_.samples != nullptr) options_.samples->rewind();
    const auto source = open_samples(options_.calibration_data.value_or(""), options_.samples,
                                     input_specs(onnx::read_model(options_.model), options_.config.input_shapes),
                                     {.max_samples = 1,
                                      .batch_size = options_.batch_size,
                                      .file_memory = memory_for_samples(options_.resources),
                                      .input_values = options_.input_values});
    if (auto sample = source->next()) {
      where = fmt::format("sample '{}'", sample->origin);
      return with_cache_of(std::move(sample->inputs), specs);
    }
  }
  return data::synthetic_inputs(specs, {}, options_.input_values);
}

void Prover::run_once(const fs::path& file) {
  exec::GuardedSession session(*runtime_, file, guard_options(options_));
  std::string where;
  std::vector<data::Array> inputs;
  try {
    inputs = inputs_for(input_specs(onnx::read_model(file)), where);
    if (where.empty()) {
      // Made-up inputs need not be what the model can take: then the float model says so as well.
      where = "synthetic inputs";
      if (const auto needed = memory_of(options_.model); needed > memory_for_samples(options_.resources)) {
        notes_.push_back(
            fmt::format("the written file was loaded, but not run: on synthetic inputs the float model is run "
                        "first, which would take about {}",
                        format_size(needed)));
        return;
      }
      exec::GuardedSession(*runtime_, options_.model, guard_options(options_)).run(inputs, where);
    }
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) throw;
    notes_.push_back(
        fmt::format("the written file was loaded, but not run: {}", by_name_of(options_.output, file, e.what())));
    return;
  }
  session.run(inputs, where);
}

}  // namespace detent::run
