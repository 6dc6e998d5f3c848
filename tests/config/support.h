// What the tests of options have in common.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "config/option.h"
#include "detent/error.h"

namespace detent::config::test {

/// The message and hint of the usage error that `act` ends in; empty when there is none.
template <class Act>
std::string usage_error_of(Act act) {
  try {
    act();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage) << e.what();
    return std::string(e.what()) + "; " + e.hint();
  }
  return {};
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Gives a member another value of its type.
inline void change(const Member& member) {
  std::visit(Overloaded{[](bool* v) { *v = !*v; }, [](std::optional<bool>* v) { *v = !v->value_or(true); },
                        [](std::string* v) { *v += "x"; }, [](std::filesystem::path* v) { *v += "x"; },
                        [](std::optional<std::filesystem::path>* v) { *v = "x"; },
                        [](std::optional<std::uint64_t>* v) { *v = v->value_or(0) + 1; },
                        [](std::optional<double>* v) { *v = v->value_or(0) + 0.5; },
                        [](std::vector<std::string>* v) { v->push_back("x"); },
                        [](std::vector<double>* v) { v->push_back(50); },
                        [](std::vector<int>* v) { v->push_back(static_cast<int>(v->size())); },
                        [](std::vector<std::filesystem::path>* v) { v->push_back("x"); },
                        [](std::pair<double, double>* v) { v->second += 1; },
                        [](std::vector<TensorOverride>* v) {
                          v->push_back({"x", CalibrationMethod::mse, {}});
                        },
                        [](Shapes* v) { (*v)["x"] = {1}; },
                        [](const Choice& c) {
                          const int now = c.get(c.at);
                          for (const auto& word : c.words) {
                            if (word.value != now) return c.set(c.at, word.value);
                          }
                        },
                        [](const Choices& c) {
                          auto values = c.get(c.at);
                          values.push_back(c.words.front().value);
                          c.set(c.at, values);
                        },
                        [](auto* v) { *v += 1; }},
             member);
}

}  // namespace detent::config::test
