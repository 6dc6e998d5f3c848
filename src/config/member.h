// A member of an option struct, of any type that an option can have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "config/enum_names.h"
#include "detent/config.h"

namespace detent::config {

/// A member that takes one of a few words.
struct Choice {
  std::span<const EnumName> words;
  void* at = nullptr;
  int (*get)(const void*) = nullptr;
  void (*set)(void*, int) = nullptr;
};

/// A member that takes several of them.
struct Choices {
  std::span<const EnumName> words;
  void* at = nullptr;
  std::vector<int> (*get)(const void*) = nullptr;
  void (*set)(void*, const std::vector<int>&) = nullptr;
};

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

static_assert(std::is_same_v<std::size_t, std::uint64_t>, "counts and sizes share an entry of Member");

/// Where an option's value is.
using Member = std::variant<bool*, std::optional<bool>*, int*, std::int64_t*, std::uint64_t*,
                            std::optional<std::uint64_t>*, double*, std::optional<double>*, std::string*,
                            std::filesystem::path*, std::optional<std::filesystem::path>*, std::vector<std::string>*,
                            std::vector<double>*, std::vector<int>*, std::vector<std::filesystem::path>*,
                            std::pair<double, double>*, std::vector<TensorOverride>*, Shapes*, Choice, Choices>;

template <class T>
Member member_of(T& at) {
  if constexpr (std::is_enum_v<T>) {
    return Choice{enum_names<T>(), &at, [](const void* p) { return static_cast<int>(*static_cast<const T*>(p)); },
                  [](void* p, int value) { *static_cast<T*>(p) = static_cast<T>(value); }};
  } else if constexpr (requires { requires std::is_enum_v<typename T::value_type>; }) {
    using Enum = typename T::value_type;
    return Choices{enum_names<Enum>(), &at,
                   [](const void* p) {
                     std::vector<int> values;
                     for (const Enum e : *static_cast<const T*>(p)) values.push_back(static_cast<int>(e));
                     return values;
                   },
                   [](void* p, const std::vector<int>& values) {
                     auto& list = *static_cast<T*>(p);
                     list.clear();
                     for (const int v : values) list.push_back(static_cast<Enum>(v));
                   }};
  } else {
    return &at;
  }
}

/// What to call for each of several types in std::visit.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // clang before 17 does not deduce it

}  // namespace detent::config
