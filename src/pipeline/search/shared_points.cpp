#include "pipeline/search/shared_points.h"

#include <bit>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

// Numbers travel by their bits: JSON has none that are infinite.
std::uint64_t bits_of(double number) { return std::bit_cast<std::uint64_t>(number); }
double number_of(const nlohmann::json& bits) { return std::bit_cast<double>(bits.get<std::uint64_t>()); }

Attempt read_attempt(const nlohmann::json& entry, SearchPoint point) {
  Attempt attempt{std::move(point), name_of_json(entry.at("reason")).value()};
  attempt.point.bytes = entry.at("bytes").get<std::uint64_t>();
  attempt.point.error = number_of(entry.at("error"));
  attempt.point.sqnr_db = number_of(entry.at("sqnr_db"));
  if (entry.contains("value")) attempt.point.value = number_of(entry.at("value"));
  return attempt;
}

}  // namespace

// A name, its formats, and an empty word at the end of each point.
std::vector<SearchPoint> broadcast_points(shim::Ranks* ranks, const std::vector<SearchPoint>& points,
                                          const std::stop_token& stop) {
  std::vector<std::string> words;
  for (const auto& point : points) {
    words.push_back(point.name);
    words.insert(words.end(), point.node_formats.begin(), point.node_formats.end());
    words.emplace_back();
  }
  std::vector<SearchPoint> wanted;
  bool opens = true;
  for (auto& word : shim::broadcast_names(ranks, std::move(words), stop)) {
    if (word.empty()) {
      opens = true;
    } else if (std::exchange(opens, false)) {
      wanted.emplace_back().name = std::move(word);
    } else {
      wanted.back().node_formats.push_back(std::move(word));
    }
  }
  return wanted;
}

std::vector<std::byte> written(const PointShare& share) {
  nlohmann::json told{{"inferences", share.inferences}, {"cut_off", share.cut_off}};
  told["attempts"] = nlohmann::json::array();
  for (const auto& [point, reason] : share.attempts) {
    told["attempts"].push_back({{"reason", json_of_name(reason)},
                                {"bytes", point.bytes},
                                {"error", bits_of(point.error)},
                                {"sqnr_db", bits_of(point.sqnr_db)}});
    if (point.value) told["attempts"].back()["value"] = bits_of(*point.value);
  }
  const auto text = json_text(told);
  const auto bytes = as_byte_span(text);
  return {bytes.begin(), bytes.end()};
}

PointShare read_share(int rank, std::span<const std::byte> bytes, const std::vector<SearchPoint>& points) {
  PointShare share;
  try {
    const auto told = parse_json(as_text(bytes)).value();
    share.inferences = told.at("inferences").get<std::uint64_t>();
    share.cut_off = told.at("cut_off").get<bool>();
    const auto& attempts = told.at("attempts");
    if (attempts.size() != (share.cut_off ? 0 : points.size()))
      throw shim::unexpected_message(rank, "models that were not asked for");
    for (std::size_t p = 0; p < attempts.size(); ++p) share.attempts.push_back(read_attempt(attempts.at(p), points[p]));
  } catch (const nlohmann::json::exception&) {
    throw shim::unexpected_message(rank, "no measured models");
  } catch (const std::bad_optional_access&) {
    throw shim::unexpected_message(rank, "no measured models");
  }
  return share;
}

}  // namespace detent::pipeline
