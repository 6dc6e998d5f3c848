#include "exec/node_times.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "base/json.h"

namespace detent::exec {

namespace {

std::string text(const nlohmann::json& object, const char* member) {
  return object.is_object() && object.contains(member) && object[member].is_string() ? object[member].get<std::string>()
                                                                                     : std::string();
}

double number(const nlohmann::json& object, const char* member) {
  return object.contains(member) && object[member].is_number() ? object[member].get<double>() : 0;
}

}  // namespace

std::vector<NodeTime> read_node_times(const std::filesystem::path& path) {
  constexpr std::string_view kSuffix = "_kernel_time";
  constexpr double kMicrosecond = 1e-6;
  std::vector<NodeTime> times;
  std::ifstream file(path);
  // The file is one JSON array with an event a line: read so, it is never in memory as a whole.
  for (std::string line; std::getline(file, line);) {
    while (!line.empty() && (line.back() == ',' || line.back() == '\r')) line.pop_back();
    const auto event = parse_json(line);
    if (!event || text(*event, "cat") != "Node") continue;
    std::string name = text(*event, "name");
    if (!name.ends_with(kSuffix)) continue;
    name.resize(name.size() - kSuffix.size());
    const auto args = event->value("args", nlohmann::json::object());
    times.push_back({std::move(name), text(args, "op_name"), kMicrosecond * number(*event, "ts"),
                     kMicrosecond * number(*event, "dur"), text(args, "provider")});
  }
  return times;
}

std::vector<NodeTime> last_of_each(std::vector<NodeTime> times) {
  std::vector<NodeTime> last;
  std::unordered_map<std::string, std::size_t> position;
  for (auto& time : times) {
    const auto [it, added] = position.try_emplace(time.name, last.size());
    if (added) {
      last.push_back(std::move(time));
    } else {
      last[it->second] = std::move(time);
    }
  }
  return last;
}

}  // namespace detent::exec
