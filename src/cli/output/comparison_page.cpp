#include "cli/output/comparison_page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/json.h"
#include "cli/output/result_fields.h"
#include "profile/html_report.h"
#include "searching/page.h"

namespace detent::cli {
namespace {

using nlohmann::json;

// Of an SQNR that equal results do not have.
double error_of(const json& db) { return db.is_number() ? std::pow(10.0, -db.get<double>() / 10) : 0; }

json point_of(const json& result) {
  json point{{"name", name_of(result)}, {"single", false}, {"chosen", json::array()}, {"on_front", true}};
  point["bytes"] = number_at(result, "/model_bytes_after", 0);
  const auto& accuracy = value_at(result, "/accuracy");
  if (accuracy.contains("sqnr_db")) {
    point["sqnr_db"] = accuracy["sqnr_db"];
    point["error"] = error_of(accuracy["sqnr_db"]);
  }
  if (has_latency(result)) point["seconds"] = value_at(result, "/latency/after/median_seconds");
  point["outcome"] = answer_of(result);
  point["headline"] = value_at(result, "/outcome/headline");
  point["made"] = value_at(result, "/made");
  point["options"] = options_of(result);
  point["sources"] = sources_of(result);
  return point;
}

// The float model, as the first result that has a latency measured it.
json float_point(const json& result) {
  return {{"name", "fp32"},
          {"single", true},
          {"chosen", json::array()},
          {"on_front", true},
          {"bytes", number_at(result, "/model_bytes_before", 0)},
          {"sqnr_db", nullptr},
          {"error", 0},
          {"seconds", value_at(result, "/latency/before/median_seconds")}};
}

std::string model_of(const json& result) {
  const auto& model = value_at(result, "/config/model");
  return model.is_string() ? std::filesystem::path(model.get<std::string>()).filename().string() : "detent report";
}

bool is_better(const json& one, const json& other) {
  bool better = false;
  for (const char* what : {"seconds", "bytes", "error"}) {
    const double a = number_at(one, (std::string("/") + what).c_str(), INFINITY);
    const double b = number_at(other, (std::string("/") + what).c_str(), INFINITY);
    if (a > b) return false;
    better = better || a < b;
  }
  return better;
}

}  // namespace

std::string comparison_page(std::span<const json> results) {
  std::vector<json> points;
  std::set<std::string> models;
  for (const auto& result : results) {
    points.push_back(point_of(result));
    const auto& print = value_at(result, "/config/model-fingerprint");
    models.insert(print.is_string() ? print.get<std::string>() : sources_of(result));
  }
  const auto timed = std::find_if(results.begin(), results.end(), has_latency);
  if (timed != results.end() && models.size() == 1) points.push_back(float_point(*timed));
  for (auto& point : points) {
    point["on_front"] =
        std::none_of(points.begin(), points.end(), [&](const json& other) { return is_better(other, point); });
  }
  const json page{{"kind", "results"},
                  {"model", models.size() == 1 ? model_of(results.front()) : "detent report"},
                  {"points", points}};
  return searching::page(profile::script_safe(json_text(page)));
}

}  // namespace detent::cli
