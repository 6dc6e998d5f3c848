// The members of results by name: what JSON and Python have of them.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "config/enum_names.h"
#include "detent/bench.h"
#include "detent/calibrate.h"
#include "detent/check.h"
#include "detent/compare.h"
#include "detent/inspect.h"
#include "detent/plan.h"
#include "detent/quantize.h"
#include "detent/search.h"
#include "detent/verify.h"

namespace detent::config {

/// How a note begins that says how the graph was rewritten: the terminal shows it with --verbose alone.
inline constexpr std::string_view kGraphNote = "graph: ";
inline std::vector<std::string> graph_notes(std::vector<std::string> rewrites) {
  for (auto& line : rewrites) line.insert(0, kGraphNote);
  return rewrites;
}

/// A member of the struct S: its name, and the one that it has in JSON, which may name the unit as well; "": JSON has
/// not got it, or in another form.
template <class S, class T>
struct ResultField {
  std::string_view name;
  T S::*at;
  std::string_view json;
};

template <class S, class T>
constexpr ResultField<S, T> field(std::string_view name, T S::*at, std::string_view json) {
  return {name, at, json};
}
template <class S, class T>
constexpr ResultField<S, T> field(std::string_view name, T S::*at) {
  return {name, at, name};
}

/// `all`: a tuple of the struct's ResultFields.
template <class S>
struct Fields;

}  // namespace detent::config

#include "config/result_fields.h"

namespace detent::config {

template <class S>
concept HasFields = requires {
  Fields<S>::all;
};

/// Calls `visit` with each ResultField of the struct.
template <HasFields S, class Visit>
void for_each_field(Visit visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, Fields<S>::all);
}

/// A result, or a value of one. Left out are empty lists and what is unset, but for counts, which are then null. JSON
/// has no infinities: null as well.
template <class T>
nlohmann::json result_json(const T& value) {
  if constexpr (HasFields<T>) {
    auto out = nlohmann::json::object();
    for_each_field<T>([&](const auto& field) {
      const auto& member = value.*field.at;
      using Held = std::remove_cvref_t<decltype(member)>;
      if (field.json.empty()) return;
      if constexpr (requires { member.has_value(); }) {
        constexpr bool is_count = std::integral<typename Held::value_type>;
        if (member || is_count) out[std::string(field.json)] = member ? result_json(*member) : nlohmann::json();
      } else if constexpr (requires { typename Held::const_iterator; } && !std::is_same_v<Held, std::string>) {
        if (!member.empty()) out[std::string(field.json)] = result_json(member);
      } else {
        out[std::string(field.json)] = result_json(member);
      }
    });
    return out;
  } else if constexpr (std::is_enum_v<T>) {
    return word_of(enum_names<T>(), static_cast<int>(value));
  } else if constexpr (std::floating_point<T>) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return value.string();
  } else if constexpr (requires { typename T::mapped_type; }) {
    auto out = nlohmann::json::object();
    for (const auto& [name, entry] : value) out[name] = result_json(entry);
    return out;
  } else if constexpr (requires { value.begin(); } && !std::is_same_v<T, std::string>) {
    auto out = nlohmann::json::array();
    for (const auto& entry : value) out.push_back(result_json(entry));
    return out;
  } else {
    return value;
  }
}

/// A result with all of its members under their names, as Python has it. JSON has no infinities and no NaN: they are
/// {"float": "inf"}.
template <class T>
nlohmann::json members_json(const T& value) {
  if constexpr (HasFields<T>) {
    auto out = nlohmann::json::object();
    for_each_field<T>([&](const auto& field) { out[std::string(field.name)] = members_json(value.*field.at); });
    return out;
  } else if constexpr (requires { value.has_value(); }) {
    return value ? members_json(*value) : nlohmann::json();
  } else if constexpr (std::floating_point<T>) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json({{"float", fmt::format("{}", value)}});
  } else if constexpr (requires { typename T::mapped_type; }) {
    auto out = nlohmann::json::object();
    for (const auto& [name, entry] : value) out[name] = members_json(entry);
    return out;
  } else if constexpr (requires { value.begin(); } && !std::is_same_v<T, std::string> &&
                       !std::is_same_v<T, std::filesystem::path>) {
    auto out = nlohmann::json::array();
    for (const auto& entry : value) out.push_back(members_json(entry));
    return out;
  } else {
    return result_json(value);
  }
}

/// Lists that are there without entries as well.
inline void keep_lists(nlohmann::json& result, std::initializer_list<const char*> names) {
  for (const auto* name : names) result.emplace(name, nlohmann::json::array());
}

}  // namespace detent::config
