#include "pipeline/search/search_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failure.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "onnx/model.h"
#include "onnx/write.h"
#include "pipeline/search/search_singles.h"
#include "profile/html_report.h"
#include "profile/report.h"
#include "run/command.h"
#include "searching/page.h"

namespace detent::pipeline {
namespace fs = std::filesystem;
namespace {

void write_text(const fs::path& file, std::string_view text) {
  AtomicFile out(file);
  out.write(as_byte_span(text));
  out.commit();
}

std::string config_of(const SearchPoint& point) {
  std::string text = "node-formats:\n";
  for (const auto& entry : point.node_formats) text += fmt::format("- {}\n", profile::yaml_quoted(entry));
  return text;
}

std::string file_name(std::string why) {
  std::replace(why.begin(), why.end(), ' ', '-');
  return (why == "meets-the-limits" ? "model" : why) + ".onnx";
}

// With tensors in a file beside it the model is written anew, since it names that file.
void copy_model(const fs::path& from, const fs::path& to) {
  auto model = onnx::read_model(from);
  const auto& tensors = model.graph.initializers;
  if (std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.is_external; })) {
    onnx::write_model(model, to, {});
    return;
  }
  std::error_code failed;
  fs::copy_file(from, to, failed);
  if (failed) throw failed_call(errno_of(failed), fmt::format("cannot write '{}'", to.string()), ErrorKind::resource);
}

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

nlohmann::json to_json(const SearchPoint& point) {
  nlohmann::json out{{"name", point.name},         {"single", point.single},   {"sqnr_db", number(point.sqnr_db)},
                     {"error", point.error},       {"seconds", point.seconds}, {"bytes", point.bytes},
                     {"on_front", point.on_front}, {"chosen", point.chosen},   {"command", point.command}};
  for (const auto& entry : point.node_formats) out["node_formats"].push_back(json_of_name(entry));
  out["expected_error"] = point.expected_error;
  out["expected_seconds"] = point.expected_seconds;
  if (point.value) out["value"] = number(*point.value);
  if (point.written) out["written"] = point.written->string();
  return out;
}

nlohmann::json to_json(const ServingMachine& machine) {
  return {{"machine", machine.machine},     {"model", machine.model},       {"seconds", machine.seconds},
          {"instances", machine.instances}, {"requests", machine.requests}, {"peak_memory_bytes", machine.peak_memory},
          {"price", machine.price},         {"needed", machine.needed}};
}

}  // namespace

void check_search_output(const SearchOptions& options) {
  std::error_code failed;
  const auto& folder = options.output;
  const auto name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
  if (name.empty() || name == "." || name == ".." || name == "-")
    throw usage_error(fmt::format("--output '{}' is no name of a new folder", folder.string()),
                      "search writes a folder: give its name");
  if (fs::exists(folder, failed) && !fs::is_empty(folder, failed))
    throw usage_error(fmt::format("'{}' is there already", folder.string()), "give a new folder with --output");
  const AtomicFolder claimed(folder.has_filename() ? folder : folder.parent_path());  // throws where it cannot be made
}

std::string command_of(const SearchOptions& options, const SearchPoint& point) {
  if (point.name == "fp32") return {};
  auto line = fmt::format("detent quantize {} -o {}.onnx", run::quoted(options.model.string()), point.name);
  if (!options.samples_given.empty()) {
    line += " " + options.samples_given;
  } else {
    line += " --calibration-data " +
            (options.calibration_data ? run::quoted(options.calibration_data->string()) : "SAMPLES");
  }
  if (options.max_samples > 0) line += fmt::format(" --samples {}", options.max_samples);
  if (options.batch_size > 0) line += fmt::format(" --batch-size {}", options.batch_size);
  for (const auto& value : options.input_values) line += " --input " + run::quoted(value);
  if (options.threads > 0) line += fmt::format(" --threads {}", options.threads);
  if (point.node_formats.empty()) {
    if (options.kernel_table) line += " --set " + run::quoted("kernel-table=" + options.kernel_table->string());
    return line + (point.name == kInt8ForSize ? " --format int8 --optimize-for size" : " --format " + point.name);
  }
  return line + " --config " + run::quoted((options.output / (point.name + ".yaml")).string());
}

nlohmann::json to_json(const SearchResult& result) {
  nlohmann::json out{{"candidates", result.candidates}, {"samples", result.samples},
                     {"inferences", result.inferences}, {"out_of_time", result.out_of_time},
                     {"notes", result.notes},           {"peak_memory_bytes", result.peak_memory}};
  out["points"] = nlohmann::json::array();
  for (const auto& point : result.points) out["points"].push_back(to_json(point));
  for (const auto& machine : result.machines) out["machines"].push_back(to_json(machine));
  for (const auto& stage : result.stages)
    out["stages"].push_back(
        {{"name", stage.name}, {"seconds", stage.seconds}, {"peak_memory_bytes", stage.peak_memory}});
  return out;
}

void write_search(const SearchOptions& options, const std::vector<MadePoint>& made, SearchResult& result) {
  auto target = options.output;
  if (!target.has_filename()) target = target.parent_path();
  AtomicFolder folder(target);
  for (auto& point : result.points) {
    const auto found = std::find_if(made.begin(), made.end(), [&](const auto& m) { return m.told.name == point.name; });
    if (!point.node_formats.empty()) write_text(folder.path() / (point.name + ".yaml"), config_of(point));
    if (point.chosen.empty()) continue;
    const auto name = file_name(point.chosen.front());
    copy_model(found == made.end() ? options.model : found->file, folder.path() / name);
    point.written = target / name;
  }
  auto table = to_json(result);
  table["model"] = options.model.string();
  if (options.requests) table["requests"] = *options.requests;
  const auto text = json_text(table);
  write_text(folder.path() / "front.json", text + "\n");
  write_text(folder.path() / "front.html", searching::page(profile::script_safe(text)));
  folder.commit();
}

}  // namespace detent::pipeline
