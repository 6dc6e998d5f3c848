// Names of options and results in Python, each beside the member that it stands for.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "config/enum_names.h"
#include "config/results.h"

namespace detent::python {

namespace nb = nanobind;

/// The fields of a struct of options; specialized for each that Python gives as a dict.
template <class Struct>
struct Fields;

template <class T>
concept HasFields = requires {
  Fields<T>::all;
};
template <class T>
concept HasWords = std::is_enum_v<T>;

template <class Struct>
struct Field {
  std::string_view name;
  void (*set)(Struct&, nb::handle, const std::string& where);
};

template <class Member>
struct MemberOf;
template <class S, class V>
struct MemberOf<V S::*> {
  using Struct = S;
};

std::string text_of(nb::handle value);  // for messages: its repr, cut short
/// A str. Names come from models: bytes that are no UTF-8 become "\\xff".
nb::object python_text(std::string_view text);

template <class T>
void read(nb::handle value, T& into, const std::string& where);
template <class T>
nb::object write(const T& value);

/// The entry of one option, as in field<&QuantConfig::per_channel>("per_channel").
template <auto Member>
constexpr auto field(std::string_view name) {
  using Struct = typename MemberOf<decltype(Member)>::Struct;
  return Field<Struct>{name,
                       [](Struct& s, nb::handle value, const std::string& where) { read(value, s.*Member, where); }};
}

/// Sets the member of this name; false when there is none.
template <class Struct>
bool set_field(Struct& into, std::string_view name, nb::handle value) {
  for (const auto& f : Fields<Struct>::all) {
    if (f.name != name) continue;
    f.set(into, value, std::string(name));
    return true;
  }
  return false;
}

template <class T>
struct Unwrapped {};
template <class T>
struct Unwrapped<std::optional<T>> {
  using type = T;
};
template <class T>
struct Unwrapped<std::vector<T>> {
  using type = T;
};
template <class T>
concept IsOptional = requires(T t) {
  t.has_value();
};
template <class T>
concept IsVector = requires(T t) {
  t.push_back({});
}
&&!std::is_same_v<T, std::string>;

/// A text as it is; what is no text, or no UTF-8, in words.
inline std::string word_of(nb::handle value) {
  std::string text;
  return nb::try_cast(nb::str(value), text) ? text : text_of(value);
}

template <class T>
void read_words(nb::handle value, T& into, const std::string& where) {
  into = static_cast<T>(config::value_of(config::enum_names<T>(), word_of(value), where));
}

template <class T>
void read_fields(nb::handle value, T& into, const std::string& where) {
  if (!nb::isinstance<nb::dict>(value))
    throw usage_error(fmt::format("{}: {} does not name its options", where, text_of(value)));
  for (const auto& [key, item] : nb::borrow<nb::dict>(value)) {
    const auto name = nb::cast<std::string>(key);
    if (!set_field(into, name, item)) throw usage_error(fmt::format("{} has no option '{}'", where, name));
  }
}

template <class T>
void read(nb::handle value, T& into, const std::string& where) {
  if constexpr (HasFields<T>) {
    read_fields(value, into, where);
  } else if constexpr (HasWords<T>) {
    read_words(value, into, where);
  } else if constexpr (IsOptional<T>) {
    into.reset();
    if (!value.is_none()) read(value, into.emplace(), where);
  } else if constexpr (IsVector<T>) {
    if (nb::isinstance<nb::str>(value) || !PySequence_Check(value.ptr()))
      throw usage_error(fmt::format("{}: {} is not a list", where, text_of(value)));
    into.clear();
    for (const nb::handle item : nb::borrow<nb::object>(value)) {
      typename Unwrapped<T>::type element{};
      read(item, element, where);
      into.push_back(std::move(element));
    }
  } else {
    constexpr const char* kind = std::is_same_v<T, bool>          ? "True or False"
                                 : std::is_unsigned_v<T>          ? "a whole number of 0 or more"
                                 : std::is_integral_v<T>          ? "a whole number"
                                 : std::is_floating_point_v<T>    ? "a number"
                                 : std::is_same_v<T, std::string> ? "a text"
                                                                  : "what it takes";
    const bool truth = nb::isinstance<nb::bool_>(value);  // Python's True is a 1 as well
    if (truth != std::is_same_v<T, bool> || !nb::try_cast<T>(value, into, true))
      throw usage_error(fmt::format("{}: {} is not {}", where, text_of(value), kind));
  }
}

template <class T>
nb::object write(const T& value) {
  if constexpr (config::HasFields<T>) {
    nb::dict dict;
    config::for_each_field<T>(
        [&](const auto& field) { dict[nb::str(field.name.data(), field.name.size())] = write(value.*field.at); });
    return dict;
  } else if constexpr (HasWords<T>) {
    return nb::cast(std::string(config::word_of(config::enum_names<T>(), static_cast<int>(value))));
  } else if constexpr (IsOptional<T>) {
    return value ? write(*value) : nb::none();
  } else if constexpr (IsVector<T>) {
    nb::list list;
    for (const auto& element : value) list.append(write(element));
    return list;
  } else if constexpr (requires { typename T::mapped_type; }) {
    nb::dict dict;
    for (const auto& [key, element] : value) dict[write(key)] = write(element);
    return dict;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return python_text(value);
  } else {
    return nb::cast(value);
  }
}

}  // namespace detent::python
