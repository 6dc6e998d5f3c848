#include "pipeline/search/search_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/bytes.h"
#include "base/error.h"
#include "detent/bench.h"
#include "run/files/json_file.h"
#include "searching/fleet.h"
#include "shim/library.h"

namespace detent::pipeline {
namespace fs = std::filesystem;
namespace {

constexpr const char* kExample =
    R"(write {"machines": [{"name": "small", "kernel-table": "small.json", "threads": 4, "memory": "8GiB", "price": 0.17}]})";

class Entry {
 public:
  Entry(const fs::path& file, std::size_t number, const nlohmann::ordered_json& entry)
      : file_(file), number_(number), entry_(entry) {
    if (!entry.is_object()) throw wrong("is no object");
    const std::set<std::string> known{"name", "kernel-table", "threads", "memory", "price"};
    for (const auto& [key, value] : entry.items()) {
      if (!known.contains(key)) throw wrong(fmt::format("has an unknown member '{}'", key));
    }
  }

  Machine machine() const {
    Machine machine;
    machine.name = text("name");
    const bool is_plain = std::all_of(machine.name.begin(), machine.name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (machine.name.empty() || !is_plain) throw wrong("needs a name of letters, digits, '-', '_' and '.'");
    machine.kernel_table = file_.parent_path() / text("kernel-table");
    const double threads = number("threads");
    if (threads < 1 || threads > 4096 || threads != std::floor(threads))
      throw wrong("'threads' is not a whole number from 1 to 4096");
    machine.threads = static_cast<std::uint64_t>(threads);
    machine.price = number("price");
    constexpr double kMost = 1e12;
    if (machine.price < 0 || machine.price > kMost) throw wrong("'price' is not from 0 to 10^12");
    if (entry_.contains("memory")) machine.memory = bytes(text("memory"));
    return machine;
  }

 private:
  Error wrong(const std::string& what) const {
    return bad_input(fmt::format("--machines '{}': machine {} {}", file_.string(), number_, what), kExample);
  }

  std::string text(const char* member) const {
    if (!entry_.contains(member) || !entry_.at(member).is_string())
      throw wrong(fmt::format("needs a text '{}'", member));
    return entry_.at(member).get<std::string>();
  }

  double number(const char* member) const {
    if (!entry_.contains(member) || !entry_.at(member).is_number())
      throw wrong(fmt::format("needs a number '{}'", member));
    return entry_.at(member).get<double>();
  }

  std::uint64_t bytes(const std::string& text) const {
    try {
      return parse_size(text);
    } catch (const Error& e) {
      throw wrong(fmt::format("'memory': {}", e.what()));
    }
  }

  const fs::path& file_;
  std::size_t number_;
  const nlohmann::ordered_json& entry_;
};

ServingMachine serving(const Machine& machine, const Offered& offered, const SearchPoint& point) {
  ServingMachine serving;
  serving.machine = machine.name;
  serving.model = point.name;
  serving.seconds = offered.seconds;
  if (!(offered.seconds > 0))
    throw bad_input(fmt::format("machine '{}': its kernel table gives model '{}' no time", machine.name, point.name),
                    "measure its kernels again: a table with times of 0 tells nothing");
  serving.instances = machine.threads;
  if (machine.memory && offered.peak_memory > 0)
    serving.instances = std::min(machine.threads, *machine.memory / offered.peak_memory);
  serving.requests = static_cast<double>(serving.instances) / offered.seconds;
  serving.peak_memory = offered.peak_memory;
  serving.price = machine.price;
  return serving;
}

}  // namespace

std::vector<Machine> read_machines(const fs::path& path) {
  const auto root = run::read_json(path);
  if (!root.contains("machines") || !root.at("machines").is_array() || root.at("machines").empty())
    throw bad_input(fmt::format("--machines '{}' has no list 'machines'", path.string()), kExample);
  std::vector<Machine> machines;
  std::set<std::string> names;
  for (const auto& entry : root.at("machines")) {
    machines.push_back(Entry(path, machines.size() + 1, entry).machine());
    if (!names.insert(machines.back().name).second)
      throw bad_input(fmt::format("--machines '{}': two machines are '{}'", path.string(), machines.back().name),
                      "give each its own name");
  }
  return machines;
}

std::vector<ServingMachine> serve(const std::vector<Machine>& machines,
                                  const std::vector<std::vector<Offered>>& offered,
                                  const std::vector<SearchPoint>& points, double requests) {
  std::vector<ServingMachine> all;
  for (std::size_t m = 0; m < machines.size(); ++m) {
    std::optional<ServingMachine> best;
    for (const auto& each : offered[m]) {
      auto one = serving(machines[m], each, points[each.point]);
      if (one.instances > 0 && (!best || one.requests > best->requests)) best = std::move(one);
    }
    if (best) all.push_back(std::move(*best));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.price * b.requests < b.price * a.requests; });
  if (all.empty()) return all;
  std::vector<searching::Offer> offers;
  for (const auto& each : all) offers.push_back({each.requests, each.price});
  const auto counts = searching::cheapest_fleet(offers, requests);
  if (counts.empty())
    throw usage_error(fmt::format("--requests: no number of these machines serves {} a second", requests),
                      "ask for fewer");
  for (std::size_t m = 0; m < all.size(); ++m) all[m].needed = counts[m];
  return all;
}

std::vector<std::uint64_t> peak_memories(const SearchOptions& options, const std::vector<fs::path>& models,
                                         std::stop_token stop, std::vector<std::string>& notes) {
  BenchOptions bench;
  bench.models = models;
  bench.calibration_data = options.calibration_data.value_or("");
  bench.samples = options.samples;
  if (bench.samples != nullptr) bench.samples->rewind();
  bench.max_samples = 1;
  bench.batch_size = options.batch_size;
  bench.input_values = options.input_values;
  bench.threads = 1;
  bench.runs = 1;
  bench.program = shim::find_program().value_or("");
  bench.runtime = options.runtime;
  bench.stop = std::move(stop);
  const auto told = detent::bench(bench);
  notes.insert(notes.end(), told.notes.begin(), told.notes.end());
  std::vector<std::uint64_t> bytes;
  for (const auto& model : told.models) bytes.push_back(model.peak_memory.value_or(0));
  return bytes;
}

}  // namespace detent::pipeline
