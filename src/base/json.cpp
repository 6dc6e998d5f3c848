#include "base/json.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "base/text.h"

namespace detent {
namespace {

constexpr const char* kHex = "hex";
constexpr const char* kSum = "sum";

// Takes what the parser finds, and stops it beyond the limits. An ordered object is a list in which each name would be
// looked up from the beginning: where they are is kept beside it.
template <class Json>
class Builder {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) { return add(value) != nullptr; }
  bool string(string_t& value) { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

  bool key(string_t& name) {
    auto& members = *open_.back().value->template get_ptr<typename Json::object_t*>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      const auto [found, is_new] = open_.back().positions.try_emplace(name, members.size());
      if (is_new) members.emplace_back(std::move(name), nullptr);
      member_ = &(members.begin() + static_cast<std::ptrdiff_t>(found->second))->second;
    } else {
      member_ = &members[std::move(name)];
    }
    return true;
  }

  Json take() { return std::move(whole_); }

 private:
  struct Open {
    Json* value;
    std::unordered_map<std::string, std::size_t> positions = {};
  };

  Json* add(Json value) {
    if (++values_ > kMostJsonValues) return nullptr;
    if (open_.empty()) return &(whole_ = std::move(value));
    Json& around = *open_.back().value;
    if (around.is_object()) return &(*member_ = std::move(value));
    around.push_back(std::move(value));
    return &around.back();
  }

  bool open(Json value) {
    Json* added = open_.size() < kMostJsonLevels ? add(std::move(value)) : nullptr;
    if (added != nullptr) open_.push_back({added});
    return added != nullptr;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json whole_;
  Json* member_ = nullptr;  // that the next value is of
  std::vector<Open> open_;
  std::size_t values_ = 0;
};

template <class Json>
std::string text_of(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string checksum(const nlohmann::json& object) {
  Hasher hasher;
  hasher.add(json_text(object));
  return hasher.result().text();
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto next = first_code_point(text);
    if (!next.valid) return false;
    text.remove_prefix(next.length);
  }
  return true;
}

}  // namespace

template <class Json>
std::optional<Json> parse_json(std::string_view text) {
  Builder<Json> builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  return builder.take();
}
template std::optional<nlohmann::json> parse_json(std::string_view text);
template std::optional<nlohmann::ordered_json> parse_json(std::string_view text);

std::optional<nlohmann::json> parse_json(std::string_view text) { return parse_json<nlohmann::json>(text); }

std::string json_text(const nlohmann::json& value, int indent) { return text_of(value, indent); }
std::string json_text(const nlohmann::ordered_json& value, int indent) { return text_of(value, indent); }

std::string sealed_json_text(nlohmann::json object) {
  object.erase(kSum);
  object[kSum] = checksum(object);
  return json_text(object);
}

std::optional<nlohmann::json> parse_sealed_json(std::string_view text) {
  auto object = parse_json(text);
  if (!object || !object->is_object() || !object->contains(kSum)) return std::nullopt;
  const auto sum = object->at(kSum);
  object->erase(kSum);
  return sum == checksum(*object) ? std::move(object) : std::nullopt;
}

nlohmann::json json_of_name(std::string_view name) {
  if (is_utf8(name)) return name;
  std::string digits;
  for (const char c : name) digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return {{kHex, digits}};
}

std::optional<std::string> name_of_json(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object() || !value.contains(kHex) || !value[kHex].is_string()) return std::nullopt;
  const auto& digits = value[kHex].get_ref<const std::string&>();
  if (digits.size() % 2 != 0) return std::nullopt;
  std::string name;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    unsigned char byte = 0;
    const char* const end = digits.data() + i + 2;
    if (const auto [at, failed] = std::from_chars(digits.data() + i, end, byte, 16); at != end || failed != std::errc())
      return std::nullopt;
    name += static_cast<char>(byte);
  }
  return name;
}

}  // namespace detent
