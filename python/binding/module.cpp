// The native half of the Python package: what detent's headers offer, over dicts. The package around it gives the
// dicts their types.
#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "calibration/statistics_file.h"
#include "config/validate.h"
#include "consumer.h"
#include "fields.h"
#include "host.h"
#include "options.h"
#include "profiler.h"
#include "stream.h"

namespace detent::python {
namespace {

using Clock = std::chrono::steady_clock;

// Python hears of progress a few times a second, and of each stage's end.
Progress progress_to(Host& host, nb::handle told) {
  if (told.is_none()) return {};
  struct State {
    std::mutex mutex;
    Clock::time_point last;
  };
  static constexpr std::chrono::milliseconds kPeriod{100};
  return [&host, told, state = std::make_shared<State>()](const std::string& stage, std::uint64_t done,
                                                          std::uint64_t total) {
    {
      const std::lock_guard lock(state->mutex);
      const auto now = Clock::now();
      if (done != total && now - state->last < kPeriod) return;
      state->last = now;
    }
    host.call([&] { told(stage, done, total); });
  };
}

// The caller's function runs where his other code does.
void give_score(Host& host, AccuracyConfig& accuracy) {
  if (!accuracy.score) return;
  const auto given = std::make_shared<decltype(accuracy.score)>(std::move(accuracy.score));
  accuracy.score = [&host, given](const std::filesystem::path& model) {
    double score = 0;
    host.call([&] { score = (*given)(model); });
    return score;
  };
}

std::unique_ptr<SampleStream> samples_of(Host& host, nb::handle given, const Options& options) {
  return open_stream(host, given, options.models.empty() ? options.model : options.models.front(), options.max_samples,
                     options.resources, run::with_inputs_of({}, options));
}

template <class Call>
nb::object run_within(Host& host, Options& options, const Call& call) {
  decltype(call(options)) result;
  host.run([&](std::stop_token stop) {
    options.stop = std::move(stop);
    result = call(options);
  });
  return write(result);
}

// One call of the library with the caller's samples and progress.
template <config::Command kCommand, auto kCall>
nb::object run(const nb::dict& given, nb::handle samples, nb::handle progress, nb::handle profiler) {
  Host host;
  auto options = read_options(given, kCommand);
  if (profiler.is_valid() && !profiler.is_none()) options.profiler = &nb::cast<PythonProfiler&>(profiler).native();
  const auto stream = samples_of(host, samples, options);
  if (stream != nullptr) options.samples = stream.get();
  options.progress = progress_to(host, progress);
  give_score(host, options.accuracy);
  return run_within(host, options, kCall);
}

template <config::Command kCommand, auto kCall>
nb::object run_reading_alone(const nb::dict& given) {
  Host host;
  auto options = read_options(given, kCommand);
  return run_within(host, options, kCall);
}

nb::object run_verify(const nb::dict& given, nb::handle samples, nb::handle progress, nb::handle consumer) {
  Host host;
  auto options = read_options(given, config::kVerify);
  const auto stream = samples_of(host, samples, options);
  if (stream != nullptr) options.samples = stream.get();
  std::optional<PythonConsumer> runtime;
  if (!consumer.is_none()) options.consumer = &runtime.emplace(host, consumer);
  options.progress = progress_to(host, progress);
  return run_within(host, options, verify);
}

nb::object run_merge(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output) {
  CalibrateResult result;
  Host host;
  host.run([&](const std::stop_token&) { result = merge_statistics(inputs, output); });
  return write(result);
}

// Of each tensor that has finite values: edges and counts of the bins that are not empty, and its extremes.
nb::dict run_histograms(const std::filesystem::path& file) {
  calibration::Statistics statistics;
  Host host;
  host.run([&](const std::stop_token&) { statistics = calibration::read_statistics(file); });
  nb::dict all;
  for (const auto& [name, summary] : statistics.tensors) {
    if (summary.extremes.empty()) continue;
    nb::list lows, highs, counts;
    for (const auto& bin : summary.histogram.bins()) {
      lows.append(bin.low);
      highs.append(bin.high);
      counts.append(bin.count);
    }
    all[python_text(name)] = nb::make_tuple(lows, highs, counts, summary.extremes.lowest(), summary.extremes.highest());
  }
  return all;
}

constexpr const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage: return "usage";
    case ErrorKind::bad_input: return "bad_input";
    case ErrorKind::resource: return "resource";
    case ErrorKind::device: return "device";
    case ErrorKind::interrupted: return "interrupted";
    case ErrorKind::internal: return "internal";
  }
  return "internal";
}

// detent's errors become those of detent.errors, which has a class for each kind.
void raise(const char* kind, const std::string& message, const std::string& hint) {
  const nb::object error =
      nb::module_::import_("detent.errors").attr("make")(kind, python_text(message), python_text(hint));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const nb::builtin_exception&) {
    throw;  // nanobind's own, as nb::next_overload
  } catch (const nb::python_error&) {
    throw;
  } catch (...) {
    const Error e = as_error(std::current_exception());
    raise(name_of(e.kind()), printable(e.what()), printable(e.hint()));  // tracebacks go to terminals
  }
}

}  // namespace
}  // namespace detent::python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  namespace dp = detent::python;
  // Threads of a run know one interpreter, and the end of another would find them holding its lock.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)
    throw std::runtime_error(
        "detent cannot be imported in a sub-interpreter; import it in the main one, or start a process");
  nb::register_exception_translator(dp::translate);
  m.attr("__version__") = DETENT_VERSION;
  const auto define = [&m](const char* name, auto function) {
    m.def(name, function, nb::arg("options"), nb::arg("samples").none(), nb::arg("progress").none(),
          nb::arg("profiler").none() = nb::none());
  };
  using detent::config::Command;
  define("quantize", &dp::run<Command::kQuantize, detent::quantize>);
  define("calibrate", &dp::run<Command::kCalibrate, detent::calibrate>);
  define("plan", &dp::run<Command::kQuantize, detent::plan>);
  define("compare", &dp::run<Command::kCompare, detent::compare>);
  define("bench", &dp::run<Command::kBench, detent::bench>);
  define("search", &dp::run<Command::kSearch, detent::search>);
  m.def("verify", &dp::run_verify, nb::arg("options"), nb::arg("samples").none(), nb::arg("progress").none(),
        nb::arg("consumer").none());
  m.def("inspect", &dp::run_reading_alone<Command::kInspect, detent::inspect>, nb::arg("options"));
  m.def("check", &dp::run_reading_alone<Command::kCheck, detent::check>, nb::arg("options"));
  m.def("histograms", &dp::run_histograms, nb::arg("statistics"));
  m.def("merge", &dp::run_merge, nb::arg("inputs"), nb::arg("output"));
  m.def(
      "parse_devices", [](const std::string& text) { return detent::parse_devices(text); }, nb::arg("text"));
  m.def("format_size", &detent::format_size, nb::arg("bytes"));
  m.def("option_names", [] {
    nb::dict names;
    for (const auto& [name, command] : {std::pair("quantize", detent::config::kQuantize),
                                        {"calibrate", detent::config::kCalibrate},
                                        {"compare", detent::config::kCompare},
                                        {"inspect", detent::config::kInspect},
                                        {"check", detent::config::kCheck},
                                        {"verify", detent::config::kVerify},
                                        {"bench", detent::config::kBench},
                                        {"search", detent::config::kSearch}})
      names[name] = dp::option_names(command);
    return names;
  });
  dp::bind_profiler(m);
  m.def("end_runs", &dp::Host::end_all);
  m.def("schema", [] { return detent::config::schema_json().dump(); });
}
